"""The engine: requests come and go at any step, and share every forward.

    engine.add_request(request)
    while engine.has_unfinished:
        for turn in engine.step():
            ...  # turn.request, and in turn.kept what it has newly committed

One lock guards it, so that several threads, or several generators of one thread, may drive it in turns: whoever
steps advances everybody's requests, and each finds its own in `request.emitted`.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, cast

from draftproof.config import EngineConfig
from draftproof.drafters.base import Drafter
from draftproof.engine.device_verification import DeviceVerification
from draftproof.engine.drafting import num_asked
from draftproof.engine.request import Request
from draftproof.engine.scheduler import Scheduler, for_passes
from draftproof.engine.slots import Slots
from draftproof.engine.step import Machinery, step
from draftproof.engine.turn import Turn
from draftproof.errors import ParameterError
from draftproof.sampling import SamplerChain
from draftproof.targets.base import Target

if TYPE_CHECKING:
    from draftproof.engine.ahead.loop import AheadLoop
    from draftproof.targets.hf import HFTarget


class Engine:
    """Continuous batching over one target: its slots are used by this engine alone."""

    def __init__(
        self,
        target: Target,
        chain: SamplerChain,
        drafter: Drafter | None = None,
        *,
        max_num_batched_tokens: int = 512,
        max_num_waiting: int = 1024,
        enable_prefix_caching: bool = False,
        logprobs_mode: str = "raw_logprobs",
        async_scheduling: bool | None = None,
    ) -> None:
        """max_num_batched_tokens: of one step, contexts and drafts together. max_num_waiting: beyond them
        `add_request` raises QueueFullError. enable_prefix_caching: requests copy what others hold of their context.
        async_scheduling: steps of batches that allow it run ahead of the host (`ahead/`); None for CUDA devices.
        """
        limits = (("max_num_batched_tokens", max_num_batched_tokens, 2), ("max_num_waiting", max_num_waiting, 1))
        for name, value, least in limits:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ParameterError(name, value, f"an integer of {least} or more")
        verification = DeviceVerification.of(target.device, chain, logprobs_mode)
        self.machinery = Machinery(target, chain, drafter, logprobs_mode, verification)
        self.slots = Slots(target, drafter, share=enable_prefix_caching)
        self.scheduler = Scheduler(
            target,
            self.slots,
            lambda request, num_missing: num_asked(target, drafter, request, num_missing),
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_waiting=max_num_waiting,
        )
        self.ahead = self._ahead(async_scheduling)
        self._drained: list[Turn] = []
        self._requests: dict[str, Request] = {}
        self._lock = threading.RLock()

    @property
    def has_unfinished(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        """Requests with a slot."""
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return self.scheduler.num_waiting

    @property
    def has_room(self) -> bool:
        """Whether `add_request` would take one more."""
        return self.num_waiting < self.scheduler.max_num_waiting

    def add_request(self, request: Request) -> None:
        """Queue a request that was admitted (`Admission.admit`) and hasn't run yet.

        Raises QueueFullError, and ParameterError for an id that is in use or a draft length that no step has room for.
        """
        with self._lock:
            if request.request_id in self._requests:
                raise ParameterError("request_id", request.request_id, "no other unfinished request's")
            if request.is_finished or request.slot >= 0:
                raise ParameterError("request", request.request_id, "one that has not been run", "admit it anew")
            self._check_budget(request)
            self.scheduler.add(request)
            self._requests[request.request_id] = request

    def abort(self, request_id: str) -> bool:
        """End a request where it is; what it has emitted stays. False if no unfinished request has that id."""
        with self._lock:
            if request_id not in self._requests:
                return False
            self._drain()
            request = self._requests.get(request_id)
            if request is None:
                return False
            request.abort()
            self._settle(request)
            return True

    def step(self) -> list[Turn]:
        """One forward, and what came of it for every request that took part; [] if there was nothing to do.

        A request's failure is in `request.error`. If the step itself is interrupted (Ctrl-C, or a target that
        fails as a whole), the requests that took part go back to the queue with what they had committed, and resume.
        """
        with self._lock:
            try:
                turns = self._advance()
            except BaseException:
                if self.ahead is not None:
                    self.ahead.forget()
                for request in list(self.scheduler.running):
                    if request.is_finished:
                        self._settle(request)
                    else:
                        self.scheduler.preempt(request)
                raise
            for turn in turns:
                self._settle(turn.request)
            turns, self._drained = self._drained + turns, []
            return turns

    def _advance(self) -> list[Turn]:
        if self.ahead is not None and self.ahead.is_running:
            return self.ahead.step()
        turns = self.scheduler.next_turns()
        if self.ahead is not None and self.ahead.begin(turns):
            return self.ahead.step()
        step(self.machinery, turns)
        return turns

    def _drain(self) -> None:
        """Wait for what runs ahead; the next `step` tells what came of it."""
        if self.ahead is not None and self.ahead.is_running:
            turns = self.ahead.leave()
            for turn in turns:
                self._settle(turn.request)
            self._drained += turns

    def _ahead(self, asked: bool | None) -> AheadLoop | None:
        target, chain, drafter = self.machinery.target, self.machinery.chain, self.machinery.drafter
        can = getattr(target, "can_follow", False) and target.device.type == "cuda"
        can = can and chain.preset.name == "vllm" and chain.dtype == "float32"
        if asked and not can:
            raise ParameterError(
                "async_scheduling", True, "False or None here",
                "it takes a CUDA device, a target whose attention is ours, and the chain vllm in float32",
            )  # fmt: skip
        if not can or asked is False:
            return None
        # Imported where it is needed: learned drafters' modules take transformers with them.
        from draftproof.engine.ahead.loop import AheadLoop

        return AheadLoop(cast("HFTarget", target), drafter, self.scheduler)

    def _settle(self, request: Request) -> None:
        if request.is_finished:
            # Both of two steps that were read together may name it.
            if self._requests.pop(request.request_id, None) is None:
                return
            self.scheduler.leave(request)
        else:
            self.slots.publish(request)

    def _check_budget(self, request: Request) -> None:
        longest = request.length_policy.max_tokens if request.length_policy is not None else 0
        given = self.scheduler.max_num_batched_tokens
        if for_passes(given) < 1 + longest:
            enough = next(number for number in count(given) if for_passes(number) > longest)
            raise ParameterError(
                "max_num_batched_tokens",
                given,
                f"enough for a draft of {longest} tokens beside contexts: {enough} or more",
                "raise it, or draft fewer tokens",
            )


def make_engine(config: EngineConfig, target: Target, chain: SamplerChain, drafter: Drafter | None) -> Engine:
    """An engine with the limits of `config`. enable_prefix_caching None: on for targets that are invariant."""
    share = config.enable_prefix_caching
    return Engine(
        target,
        chain,
        drafter,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_waiting=config.max_num_waiting,
        enable_prefix_caching=bool(getattr(target, "invariant", False)) if share is None else share,
        logprobs_mode=config.logprobs_mode,
        async_scheduling=config.async_scheduling,
    )
