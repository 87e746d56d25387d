"""When a batch's steps run ahead of the host, and how the host follows.

The host launches step k + 1 and then reads step k: it commits its tokens, runs the stop rules and makes text while the
device works. So far as a request goes on, what runs already is what comes next anyway. Where one ends, or somebody
else is to be served, the loop is left: the step that runs is read too, its tokens are committed for those that go on
and dropped for those that ended, and every slot is rewound to what is committed. Nothing is then different from steps
that the host has waited for.

Only the batch as a whole runs ahead: plain keyed requests (what `kernels` take without masks, penalties and reports of
probabilities) that draft as many tokens each (`lengths.py`), by a drafter that the device drives, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch

from draftproof.core import Draft, Outcome
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import Load
from draftproof.drafters.learned.following import follows, most_drafts
from draftproof.engine.ahead.draws import Draws
from draftproof.engine.ahead.kinds import AskedKinds
from draftproof.engine.ahead.lengths import KEPT_FOR, MOST_KEPT, agreed_length, few, is_kept, num_steps
from draftproof.engine.ahead.step import AheadStep, Report
from draftproof.engine.drafting import draft_request
from draftproof.engine.request import Request
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.turn import Turn
from draftproof.errors import ModelError

if TYPE_CHECKING:
    from draftproof.drafters.learned.block_drafter import BlockDrafter
    from draftproof.drafters.learned.chain_drafter import ChainDrafter
    from draftproof.targets.hf import HFTarget

MOST_STEPS: Final = 32
"""Captured steps that are kept, of different batches and lengths."""
LEAST_KEYS: Final = 256
LEAST_COLUMNS: Final = 1024
"""Of a batch: longer contexts of a few requests cost next to nothing where there is none, and a new graph does."""


@dataclass(slots=True)
class Member:
    """One request of the batch. bound: the most entries that its slot has once all that was launched has run.
    fed: up to where the drafter's context is cached."""

    request: Request
    bound: int
    fed: int


class AheadLoop:
    """One engine's. drafter: the engine's own."""

    def __init__(self, target: HFTarget, drafter: Any, scheduler: Scheduler) -> None:
        self._target, self._scheduler = target, scheduler
        self._drafter: BlockDrafter | ChainDrafter | None = drafter if follows(drafter) else None
        self._is_plain = drafter is None
        self._members: list[Member] = []
        self._launched: list[int] = []
        self._step: AheadStep | None = None
        self._steps: dict[Any, AheadStep] = {}
        self._waited_for: set[str] = set()
        self._pool: Any = None
        self._kinds = AskedKinds()
        self._num_left: int | None = None
        self._num_kept = 0
        self._read_at: float | None = None
        self.num_steps = 0

    @property
    def is_running(self) -> bool:
        """Whether a step has been launched that nobody has read."""
        return bool(self._launched)

    def begin(self, turns: Sequence[Turn]) -> bool:
        """Launch the first step of these turns' requests, if they can all run ahead; else nothing is changed."""
        num_drafts = self._num_drafts(turns)
        if num_drafts is None:
            return False
        if num_drafts and self._drafter is not None:
            self._drafter.cache_context([draft_request(turn) for turn in turns])
        requests = [turn.request for turn in turns]
        self._num_left, self._read_at, self._num_kept = num_steps(turns, num_drafts), None, 0
        self._members = [Member(request, request.num_cached, request.num_cached) for request in requests]
        if not self._has_room(num_drafts + 1):
            self._members = []
            return False
        for request in requests:
            if isinstance(request.length_policy, AutoLength):
                request.length_policy.run_ahead()
        self._step = self._step_for(requests, num_drafts)
        newest, starts = [request.context_ids[-1] for request in requests], [request.num_cached for request in requests]
        self._step.begin([request.slot for request in requests], newest, starts)
        self._launch(self._step)
        return True

    def step(self) -> list[Turn]:
        """Launch the next step, if there is to be one, and commit the one before it."""
        step = self._step
        assert step is not None
        if self._goes_on(step):
            self._launch(step)
        turns = self._read(step)
        if not self._launched or any(not self._is_served(member) for member in self._members):
            turns += self.leave()
        return turns

    def leave(self) -> list[Turn]:
        """Commit what still runs, and leave every slot as steps that are waited for would have left it."""
        turns = []
        while self._launched:
            assert self._step is not None
            turns += self._read(self._step)
        for member in self._members:
            self._settle(member)
        self._members = []
        return turns

    def forget(self) -> None:
        """Drop what runs: its requests are gone, or about to be preempted."""
        self._members, self._launched = [], []

    def _num_drafts(self, turns: Sequence[Turn]) -> int | None:
        """How many tokens each of them drafts; None if they can't run ahead."""
        requests = [turn.request for turn in turns]
        if not turns or self._is_awaited() or len(turns) < len(self._scheduler.running):
            return None
        if not all(turn.is_pass and turn.num_context == 1 for turn in turns):
            return None
        if self._is_plain or all(request.length_policy is None for request in requests):
            num_drafts: int | None = 0
        elif self._drafter is None or min(request.num_cached for request in requests) == 0:
            # A drafter's first entry may take a token and the one before it.
            return None
        else:
            num_drafts = agreed_length(turns, self._most_drafts(len(turns)))
        most = self._target.shapes.num_tokens
        if num_drafts is None or (most is not None and len(turns) * (num_drafts + 1) > most):
            return None
        self._kinds.keep(requests)
        return num_drafts if all(map(self._runs_ahead, requests)) else None

    def _most_drafts(self, num_requests: int) -> int:
        """Of each request: what the drafter makes, and a forward of fixed shape has room for."""
        assert self._drafter is not None
        most, num_tokens = most_drafts(self._drafter), self._target.shapes.num_tokens
        return most if num_tokens is None else min(most, num_tokens // num_requests - 1)

    def _runs_ahead(self, request: Request) -> bool:
        """Do the device's draws honour all that the request asks for?"""
        if request.verifier.name not in ("keyed", "greedy") or request.request_id in self._waited_for:
            return False
        if request.grammar is not None or request.trace is not None or request.wants_prompt_rows:
            return False
        return request.params.logprobs is None and self._kinds.of(request) is not None

    def _is_served(self, member: Member) -> bool:
        request = member.request
        return not request.is_finished and request.request_id not in self._waited_for

    def _is_awaited(self) -> bool:
        """Could somebody be admitted?"""
        return self._scheduler.num_waiting > 0 and self._scheduler.slots.num_free > 0

    def _goes_on(self, step: AheadStep) -> bool:
        """Is another step wanted, as far as anybody knows now?"""
        if self._is_awaited() or (self._num_left == 0 and not self._keeps_on(step)):
            return False
        # What runs commits a token of each at the least.
        if any(member.request.num_tokens_left <= len(self._launched) for member in self._members):
            return False
        longest = max(member.bound for member in self._members)
        return step.is_current and longest + step.width <= step.num_keys and self._has_room(step.width)

    def _keeps_on(self, step: AheadStep) -> bool:
        """Is the length kept that the policies have chosen?"""
        requests = [member.request for member in self._members]
        if self._num_kept % KEPT_FOR or self._num_kept >= MOST_KEPT or not all(map(self._is_served, self._members)):
            return False
        if not is_kept(requests, step.width - 1, self._most_drafts(len(requests))):
            return False
        self._num_left = KEPT_FOR
        return True

    def _has_room(self, width: int) -> bool:
        """Have the model and the cache room for one more step? Then it is reserved."""
        target = self._target
        bounds = {member.request.slot: member.bound + width for member in self._members}
        if max(bounds.values()) > target.max_model_len:
            return False
        parked = self._scheduler.slots.num_parked_columns
        if sum(map(target.num_columns, bounds.values())) + parked > target.max_num_cached_tokens:
            return False
        try:
            target.expect(bounds)
        except ModelError:
            return False
        return True

    def _launch(self, step: AheadStep) -> None:
        for member in self._members:
            member.bound += step.width
        step.place([member.request.slot for member in self._members])
        self._launched.append(step.launch())
        self.num_steps += 1
        if self._num_left is not None:
            self._num_left -= 1
            self._num_kept += 1

    def _read(self, step: AheadStep) -> list[Turn]:
        reports = step.read(self._launched.pop(0))
        # The first one may have been captured, and began when the host came to it: only what follows is timed.
        now, began = perf_counter(), self._read_at
        self._read_at = now
        if began is not None:
            self._observe_cost(step.width, now - began)
        turns = []
        for member, report in zip(self._members, reports, strict=True):
            if self._is_served(member):
                member.fed = member.request.num_cached
                turns.append(self._commit(member.request, report))
                member.bound = member.request.num_cached + step.width * len(self._launched)
        return turns

    def _observe_cost(self, width: int, seconds: float) -> None:
        """One step took so long, from the end of the one before it to its own."""
        num_requests = len(self._members)
        load = Load(
            num_requests, (num_requests - 1) * width, sum(member.request.num_cached for member in self._members)
        )
        for member in self._members:
            if isinstance(member.request.length_policy, AutoLength) and seconds > 0:
                member.request.length_policy.observe_cost(width, seconds, load, ahead=True)

    def _commit(self, request: Request, report: Report) -> Turn:
        turn = Turn(request, 1, len(report.drafted_ids))
        if report.fault:
            # As where the host verifies: plain steps come to the row that is no law, and say what is wrong with it.
            self._waited_for.add(request.request_id)
            request.length_policy = None
            return turn
        num_drafted, num_accepted = len(report.drafted_ids), len(report.token_ids) - 1
        if num_drafted:
            turn.draft = Draft.of_token_ids(len(request.context_ids), report.drafted_ids)
        last = Outcome.BONUS if num_accepted == num_drafted else Outcome.RECOVERED
        with turn.failing_alone():
            turn.kept = request.take(report.token_ids, (Outcome.ACCEPTED,) * num_accepted + (last,), num_drafted)
        if request.length_policy is not None:
            num_kept = sum(token.from_draft for token in turn.kept)
            request.length_policy.observe(num_drafted, num_kept, request.confidence)
            if num_drafted == 0 and isinstance(request.length_policy, AutoLength):
                request.length_policy.wait(request.confidence)
        request.num_cached = len(request.context_ids) - 1
        return turn

    def _settle(self, member: Member) -> None:
        request = member.request
        request.num_cached = len(request.context_ids) - 1
        self._target.rewind(request.slot, request.num_cached)
        if self._drafter is not None and self._step is not None and self._step.width > 1:
            self._drafter.context.take(request.slot, request.context_ids[: min(member.fed, request.num_cached)])

    def _step_for(self, requests: Sequence[Request], num_drafts: int) -> AheadStep:
        params, target = [request.params for request in requests], self._target
        seeds, samples = [request.seed for request in requests], [request.noise.sample_index for request in requests]
        longest = max(member.bound for member in self._members) + 2 * (num_drafts + 1)
        # A kernel is compiled for what it takes, which costs seconds: all are built for what was ever asked for.
        kinds = self._kinds.with_all_before(requests)
        num_places = self._num_places(len(requests), num_drafts)
        num_keys = max(
            1 << (longest - 1).bit_length(), LEAST_KEYS, LEAST_COLUMNS // (1 << (num_places - 1).bit_length())
        )
        for values in (params, seeds, samples):
            values += values[:1] * (num_places - len(requests))  # type: ignore[operator]
        name = (num_places, num_drafts, num_keys, *kinds.values())
        if self._pool is None and target.device.type == "cuda":
            self._pool = torch.cuda.graph_pool_handle()
        step = self._steps.pop(name, None)
        if step is not None and step.is_current:
            step.draws.use(params, seeds, samples)
        else:
            draws = Draws(
                params, seeds, samples, num_drafts=num_drafts, vocab_size=target.vocab_size, device=target.device,
                kinds=kinds,
            )  # fmt: skip
            step = AheadStep(
                target,
                self._drafter if num_drafts else None,
                draws,
                num_requests=num_places,
                num_drafts=num_drafts,
                num_keys=num_keys,
                pool=self._pool,
            )
        self._steps[name] = step
        while len(self._steps) > MOST_STEPS:
            self._steps.pop(next(iter(self._steps)))
        return step

    def _num_places(self, num_requests: int, num_drafts: int) -> int:
        """Of the batch, copies included: few numbers, so that few graphs are made."""
        most = self._target.shapes.num_tokens
        limit = self._target.num_slots if most is None else min(self._target.num_slots, most // (num_drafts + 1))
        return min(few(num_requests), limit)
