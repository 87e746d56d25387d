"""A random load on an engine: requests join, leave, are cancelled, pushed out and fail; each is checked against itself.

What a request has to say is what it says alone, plain, in an engine of its own. Requests are drawn from a pool, so
that each is computed alone once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from draftproof.config import SpeculativeConfig
from draftproof.drafters.base import Drafter
from draftproof.engine.admission import Admission
from draftproof.engine.engine import Engine
from draftproof.engine.request import Request
from draftproof.errors import QueueFullError
from draftproof.params import SamplingParams
from draftproof.sampling import SamplerChain

MOST_STEPS = 4000
"""A request that isn't finished so many steps after it was queued is stuck."""


class Faults:
    """For a target: a row of NaN after token 4; and a call that fails as a whole, or is interrupted, when told to."""

    fails_next: BaseException | None = None

    def score(self, requests: Sequence[Any]) -> list[Any]:
        scorer: Any = super()
        if self.fails_next is not None:
            error, self.fails_next = self.fails_next, None
            if len(requests) > 1:
                scorer.score(requests[: len(requests) // 2])  # what had been appended by then stays behind
            raise error
        scores: list[Any] = scorer.score(requests)
        for request, rows in zip(requests, scores, strict=True):
            scored = request.token_ids[request.first_row :]
            rows[[index for index, token_id in enumerate(scored) if token_id == 4]] = math.nan
        return scores


def said(request: Request) -> tuple[Any, ...]:
    """What a request ended with: its tokens, with their logprobs if asked for, why, and where an error was."""
    reason = request.stop.finish_reason if request.stop else None
    tokens = [(token.token_id, token.logprobs and token.logprobs.own) for token in request.emitted]
    return tokens, reason, request.error and request.error.position


class Load:
    """target: with `Faults`. alone: another target, for one request at a time. vocab: prompts are made of ids below."""

    def __init__(
        self,
        target: Any,
        alone: Callable[[], Any],
        drafter: Drafter | None,
        *,
        seed: int = 0,
        num_jobs: int = 120,
        longest: int = 30,
        vocab: int = 6,
        tokens: int = 4,
        **engine: Any,
    ) -> None:
        self.target, self._alone, self.source = target, alone, random.Random(seed)
        chain = SamplerChain()
        self.engine = Engine(target, chain, drafter, **engine)
        config = SpeculativeConfig(num_speculative_tokens=tokens, draft_length="fixed") if drafter else None
        self.admission = Admission(target, None, chain, config)
        self.pool = self._jobs(num_jobs, longest, vocab)
        self.known: dict[int, tuple[Any, ...]] = {}
        self.open: dict[str, tuple[Request, int, int]] = {}
        self.aborted: set[str] = set()
        self.num_steps = self.num_checked = self.num_failed = self.num_refused = self.num_tokens = 0
        self.wrong: list[str] = []

    def turn(self) -> None:
        """One random event, a step, and a look at what it finished."""
        event = self.source.random()
        if event < 0.4:
            self._join()
        elif event < 0.46 and self.open:
            request_id = self.source.choice(sorted(self.open))
            self.aborted.add(request_id)
            self.engine.abort(request_id)
        elif event < 0.5 and self.engine.num_running:
            self.engine.scheduler.preempt(self.source.choice(self.engine.scheduler.running))
        elif event < 0.52:
            self.target.fails_next = RuntimeError("a kernel failed")
        elif event < 0.54:
            self.target.fails_next = KeyboardInterrupt()
        self._step()

    def drain(self) -> None:
        """Steps until all have ended; then nothing may be left."""
        while self.engine.has_unfinished:
            self._step()
        slots = self.engine.slots
        while slots.evict_one():
            pass
        left = [self.target.length(slot) for slot in range(self.target.num_slots)]
        if any(left) or len(slots.index) or slots.num_free != self.target.num_slots or self.open:
            self.wrong.append(
                f"left behind: lengths {left}, {len(slots.index)} index entries, {len(self.open)} requests"
            )

    def _jobs(self, num_jobs: int, longest: int, vocab: int) -> list[tuple[list[int], SamplingParams]]:
        draw = self.source.randrange
        shared = [draw(vocab) for _ in range(longest)]
        return [
            (
                shared[: draw(longest)] + [draw(vocab) for _ in range(1 + draw(12))],
                SamplingParams(
                    seed=draw(6),
                    temperature=self.source.choice([0.0, 0.7, 1.0]),
                    max_tokens=1 + draw(24),
                    repetition_penalty=self.source.choice([1.0, 1.0, 1.3]),
                    top_p=self.source.choice([1.0, 0.9]),
                    stop_token_ids=self.source.choice([(), (2,)]),
                    allowed_token_ids=self.source.choice([None, (0, 1, 2, 3, 5)]),
                    logprobs=self.source.choice([None, 0]),
                    detokenize=False,
                ),
            )
            for _ in range(num_jobs)
        ]

    def _join(self) -> None:
        job = self.source.randrange(len(self.pool))
        prompt_ids, params = self.pool[job]
        [request] = self.admission.admit(f"r{self.num_steps}", prompt_ids, params)
        request.priority = self.source.randrange(2)
        if self.source.random() < 0.25:
            request.length_policy = None
        try:
            self.engine.add_request(request)
        except QueueFullError:
            self.num_refused += 1
            return
        self.open[request.request_id] = (request, job, self.num_steps)

    def _step(self) -> None:
        try:
            turns = self.engine.step()
        except KeyboardInterrupt:
            turns = []
        self.target.fails_next = None
        self.num_steps += 1
        self.num_tokens += sum(len(turn.kept) for turn in turns)
        for request_id, (request, job, begun) in list(self.open.items()):
            if request.is_finished:
                del self.open[request_id]
                self._check(request, job)
            elif self.num_steps - begun > MOST_STEPS:
                self.wrong.append(f"{request_id} is stuck after {MOST_STEPS} steps")
                del self.open[request_id]

    def _check(self, request: Request, job: int) -> None:
        self.num_checked += 1
        self.num_failed += request.error is not None
        if job not in self.known:
            self.known[job] = run_alone(self._alone(), *self.pool[job])
        expected, found = self.known[job], said(request)
        if request.request_id in self.aborted:
            self.aborted.discard(request.request_id)
            expected, found = (expected[0][: len(found[0])], "abort", None), (*found[:2], None)
        if found != expected:
            self.wrong.append(f"{request.request_id} (job {job}) says {found}, alone it says {expected}")


def run_alone(target: Any, prompt_ids: list[int], params: SamplingParams) -> tuple[Any, ...]:
    """What a request says in an engine of its own, plain."""
    chain = SamplerChain()
    engine = Engine(target, chain)
    [request] = Admission(target, None, chain, None).admit("alone", prompt_ids, params)
    engine.add_request(request)
    while engine.has_unfinished:
        engine.step()
    return said(request)
