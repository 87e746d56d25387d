"""Who sits in which slot of the target's cache, and whose entries are kept there afterwards.

A slot is taken (by a running request) or free. A free slot keeps the entries of its last request for as long as
nobody needs the slot or the room: it is parked. The least recently parked one is emptied first. Entries are shared by
copying them into the new request's slot, so that nobody ever writes into entries that others rely on.

Room is counted in columns, as the target counts them (`Target.num_columns`).
"""

from __future__ import annotations

from draftproof.drafters.base import Drafter
from draftproof.engine.prefix import BLOCK_SIZE, PrefixIndex
from draftproof.engine.request import Request
from draftproof.targets.base import Target


class Slots:
    """share: whether requests may use each other's entries."""

    def __init__(self, target: Target, drafter: Drafter | None, *, share: bool) -> None:
        self.target, self.drafter, self.share = target, drafter, share
        self.index = PrefixIndex()
        # Empty slots; and parked ones in the order in which they were left, with `num_releases` as it was then.
        self._empty = list(range(target.num_slots))
        self._parked: dict[int, int] = {}
        self.num_reused_tokens = 0

    @property
    def num_free(self) -> int:
        """Slots without a running request."""
        return len(self._empty) + len(self._parked)

    @property
    def num_parked_columns(self) -> int:
        """Columns that could be had by emptying the parked slots."""
        return sum(self.target.num_columns(self.target.length(slot)) for slot in self._parked)

    def take(self, request: Request) -> None:
        """Give the request a slot, with what it can use of another's entries. Call only if one is free.

        A parked slot whose entries all belong to the request's context goes on as its slot; otherwise an empty one is
        taken, or the one that was parked longest ago.
        """
        self._claim()
        source, length = self._longest(request, -1) or (-1, 0)
        last_resort = not self._empty and list(self._parked) == [source]
        if source in self._parked and (self.target.length(source) == length or last_resort):
            self._go_on(request, source, length)
            return
        if not self._empty:
            self._empty_out(next(slot for slot in self._parked if slot != source))
        request.slot, request.num_cached = self._empty.pop(0), 0
        self.reuse(request)

    def reuse(self, request: Request) -> None:
        """Copy into the request's slot what others hold of its context beyond what it has."""
        source, length = self._longest(request, request.slot) or (-1, 0)
        if length < request.num_cached + BLOCK_SIZE or not self._make_room(request.slot, length, besides=source):
            return
        self.target.copy(source, request.slot, length)
        self.num_reused_tokens += length - request.num_cached
        request.num_cached = length
        self.publish(request)

    def publish(self, request: Request) -> None:
        """The request's slot holds exactly committed entries now: others may copy them."""
        if self.share:
            self.index.publish(request.slot, request.context_ids, request.num_cached)

    def leave(self, request: Request, *, keep: bool) -> None:
        """Take the request out of its slot. keep: its entries are committed, and stay until the room is needed."""
        slot = request.slot
        request.slot, request.num_cached = -1, 0
        if self.drafter is not None:
            self.drafter.release(slot)
        if keep and self.share and self.target.length(slot) >= BLOCK_SIZE:
            self.index.publish(slot, request.context_ids, self.target.length(slot))
            self._parked[slot] = self.target.num_releases(slot)
            return
        self._empty_out(slot)

    def evict_one(self) -> bool:
        """Empty the slot that was parked longest ago; False if none is parked."""
        if not self._parked:
            return False
        self._empty_out(next(iter(self._parked)))
        return True

    def _claim(self) -> None:
        """Another engine may have used the target since: what isn't as it was left is emptied."""
        for slot, num_releases in list(self._parked.items()):
            if self.target.num_releases(slot) != num_releases:
                self._empty_out(slot)
        for slot in self._empty:
            if self.target.length(slot):
                self.target.release(slot)

    def _make_room(self, slot: int, length: int, *, besides: int) -> bool:
        """Empty parked slots until `slot` may hold `length` entries; False if it may not even so."""
        columns = self.target.num_columns
        while True:
            held = sum(columns(self.target.length(other)) for other in range(self.target.num_slots) if other != slot)
            if held + columns(length) <= self.target.max_num_cached_tokens:
                return True
            oldest = next((other for other in self._parked if other != besides), None)
            if oldest is None:
                return False
            self._empty_out(oldest)

    def _go_on(self, request: Request, slot: int, length: int) -> None:
        del self._parked[slot]
        self.index.forget(slot)
        self.target.rewind(slot, length)
        request.slot, request.num_cached = slot, length
        self.num_reused_tokens += length
        self.publish(request)

    def _empty_out(self, slot: int) -> None:
        self._parked.pop(slot, None)
        self.index.forget(slot)
        self.target.release(slot)
        self._empty.append(slot)
        self._empty.sort()

    def _longest(self, request: Request, besides: int) -> tuple[int, int] | None:
        # The newest token is scored, not copied: the next law comes from its row.
        most = len(request.context_ids) - 1
        if not self.share or request.wants_prompt_rows:
            return None
        match = self.index.longest(request.context_ids, most, besides=besides)
        if match is None:
            return None
        length = self.target.reachable(match.slot, match.length)
        return (match.slot, length) if length >= BLOCK_SIZE else None
