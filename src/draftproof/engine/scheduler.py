"""Who does what in the next step: admission, turns within a token budget, and preemption.

Rules, in this order:
- Waiting requests are admitted by (priority, arrival), lower first, while a slot is free and the cache has the room
  for their context. Nobody overtakes: a long prompt at the head is not starved by short ones behind it.
- Running requests whose context is cached get a pass, least recently served first. A pass gets all the tokens that its
  draft asks for or waits for the next step: how long a draft is never depends on batch mates, which ratio tests need.
- Contexts that are not cached yet share what is left, the oldest first, in chunks; while there are any, a quarter of
  the budget is theirs.
- A context that another request is caching just now waits for it, and copies.
- If the cache can't hold what the turns append, parked slots are emptied, then the youngest running request goes back
  to the queue. The oldest is never preempted, so that every request gets to its end.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

from draftproof.engine.prefix import BLOCK_SIZE, num_common
from draftproof.engine.request import Request
from draftproof.engine.slots import Slots
from draftproof.engine.turn import Turn
from draftproof.errors import QueueFullError
from draftproof.targets.base import Target

PREFILL_SHARE: Final = 4
"""While contexts are being cached, one token in so many of the budget is theirs."""


def for_passes(num_tokens: int) -> int:
    """What of a step's budget is left for passes while contexts are being cached."""
    return num_tokens - max(num_tokens // PREFILL_SHARE, 1)


class Scheduler:
    """num_asked: how many tokens a request's next draft asks for, given that so many more context tokens are cached."""

    def __init__(
        self,
        target: Target,
        slots: Slots,
        num_asked: Callable[[Request, int], int],
        *,
        max_num_batched_tokens: int,
        max_num_waiting: int,
    ) -> None:
        self.target, self.slots, self._num_asked = target, slots, num_asked
        self.max_num_batched_tokens, self.max_num_waiting = max_num_batched_tokens, max_num_waiting
        self.running: list[Request] = []
        self.num_preemptions = 0
        self._waiting: list[tuple[int, int, Request]] = []
        self._arrivals = itertools.count()
        self.num_steps = 0

    @property
    def num_waiting(self) -> int:
        """Requests without a slot, preempted ones included."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[Request]:
        """Those requests, in the order in which they will be admitted."""
        return [request for _, _, request in sorted(self._waiting, key=lambda entry: entry[:2])]

    def add(self, request: Request) -> None:
        """Queue a new request; QueueFullError if the queue is full."""
        if self.num_waiting >= self.max_num_waiting:
            raise QueueFullError(self.num_waiting, self.max_num_waiting)
        request.arrival = next(self._arrivals)
        self._queue(request)

    def next_turns(self) -> list[Turn]:
        """The turns of the next step; none only if nothing is waiting or running."""
        self.num_steps += 1
        self._admit()
        turns = self._passes()
        turns += self._chunks(self.max_num_batched_tokens - sum(turn.num_tokens for turn in turns))
        turns = self._fit(turns)
        for turn in turns:
            turn.request.last_step = self.num_steps
        return turns

    def leave(self, request: Request) -> None:
        """A finished request leaves its slot or the queue."""
        if request in self.running:
            self.running.remove(request)
            self.slots.leave(request, keep=request.error is None)
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not request]
            heapq.heapify(self._waiting)

    def preempt(self, request: Request) -> None:
        """Back to the queue, in front of those that arrived later; what it has emitted stays."""
        self.running.remove(request)
        self.slots.leave(request, keep=False)
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._queue(request)

    def _queue(self, request: Request) -> None:
        heapq.heappush(self._waiting, (request.priority, request.arrival, request))

    def _admit(self) -> None:
        while self._waiting and self.slots.num_free:
            request = self._waiting[0][2]
            used = sum(self._columns(other, len(other.context_ids)) for other in self.running)
            if used + self._columns(request, len(request.context_ids)) > self.target.max_num_cached_tokens:
                return
            try:
                self.slots.take(request)
            except BaseException:
                if request.slot >= 0:
                    self.slots.leave(request, keep=False)
                raise
            heapq.heappop(self._waiting)
            request.last_step = self.num_steps
            self.running.append(request)

    def _passes(self) -> list[Turn]:
        ready = [request for request in self.running if request.num_cached == len(request.context_ids) - 1]
        left = self.max_num_batched_tokens
        if len(ready) < len(self.running):
            left = for_passes(left)
        turns = []
        for request in sorted(ready, key=lambda request: (request.last_step, request.arrival)):
            turn = Turn(request, 1, self._num_asked(request, 0)) if left > 0 else None
            if turn is not None and turn.num_tokens <= left:
                turns.append(turn)
                left -= turn.num_tokens
        return turns

    def _chunks(self, left: int) -> list[Turn]:
        turns: list[Turn] = []
        caching = [request for request in self.running if request.num_cached < len(request.context_ids) - 1]
        ahead: list[Request] = []
        for request in sorted(caching, key=lambda request: (request.priority, request.arrival)):
            self.slots.reuse(request)
            if left > 0 and not self._waits_for(request, ahead):
                turn = self._chunk(request, left)
                turns += [turn] if turn.num_context else []
                left -= turn.num_tokens
                ahead.append(request)
        return turns

    def _chunk(self, request: Request, left: int) -> Turn:
        missing, room = len(request.context_ids) - request.num_cached, self.target.room(request.slot)
        if missing <= min(left, room):
            num_asked = self._num_asked(request, missing - 1)
            if missing + num_asked <= min(left, room):
                return Turn(request, missing, num_asked)
        return Turn(request, min(missing - 1, left, room))

    def _waits_for(self, request: Request, ahead: list[Request]) -> bool:
        """Is another request about to have more of this one's context than it has itself?"""
        if not self.slots.share:
            return False
        most = len(request.context_ids) - 1
        return any(
            min(num_common(request.context_ids, other.context_ids), most) >= request.num_cached + BLOCK_SIZE
            for other in ahead
        )

    def _fit(self, turns: list[Turn]) -> list[Turn]:
        """The turns for which the cache has room, after emptying parked slots and preempting the youngest."""
        while self._num_columns_after(turns) + self.slots.num_parked_columns > self.target.max_num_cached_tokens:
            if self.slots.evict_one():
                continue
            youngest = max(self.running, key=lambda request: (request.priority, request.arrival))
            self.preempt(youngest)
            turns = [turn for turn in turns if turn.request is not youngest]
        return turns

    def _num_columns_after(self, turns: list[Turn]) -> int:
        appended = {id(turn.request): turn.num_tokens for turn in turns}
        return sum(
            self._columns(request, request.num_cached + appended.get(id(request), 0)) for request in self.running
        )

    def _columns(self, request: Request, length: int) -> int:
        return self.target.num_columns(min(length, self.target.max_model_len))
