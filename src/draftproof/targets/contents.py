"""What a target's slots hold: cached entries, the topology of the newest forward, hidden states; and taking them back.

A forward appends entries; a rewind keeps those of one path of what the newest forward appended, and moves them
together where they lie apart: a tree's nodes, branches of `branches.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draftproof.errors import ParameterError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.branches import Branches
from draftproof.targets.cache import SlotCache
from draftproof.targets.requested import check_path
from draftproof.targets.taps import TapStore


class SlotContents:
    """The slots of one cache. taps: where hidden states are kept, or None.

    parents: of each slot, of the tokens that the newest forward appended; None once they were taken back or kept.
    branches: by slot, of trees of the newest forward that stand in place.
    """

    def __init__(self, cache: SlotCache, taps: TapStore | None) -> None:
        self.cache, self.taps = cache, taps
        num_slots = len(cache.lengths)
        self.parents: list[tuple[int, ...] | None] = [None] * num_slots
        self._starts = [0] * num_slots
        self.branches: dict[int, Branches] = {}
        self._num_releases = [0] * num_slots

    def checked(self, slot: int) -> int:
        """The slot. Raises ParameterError where there is none of that number."""
        if not 0 <= slot < len(self.parents):
            raise ParameterError("slot", slot, f"between 0 and {len(self.parents) - 1}")
        return slot

    def length(self, slot: int) -> int:
        return self.cache.lengths[self.checked(slot)]

    def reserve(self, requests: Sequence[ScoreRequest]) -> None:
        """Room for what the requests append. Raises ModelError where there is none, with nothing changed."""
        self.cache.reserve({r.slot: self.cache.lengths[r.slot] + len(r.token_ids) for r in requests})

    def append(self, requests: Sequence[ScoreRequest], firsts: Sequence[int], branches: Mapping[int, Branches]) -> None:
        """A forward has written the requests' tokens. firsts: where each one's hidden states begin in it."""
        self.branches.update(branches)
        for request, first in zip(requests, firsts, strict=True):
            slot, num_tokens = request.slot, len(request.token_ids)
            start = self.cache.lengths[slot]
            self.cache.lengths[slot] = start + num_tokens
            self._starts[slot], self.parents[slot] = start, request.parents
            if self.taps is not None:
                self.taps.record([slot], [start], [num_tokens], [first])

    def forget(self, requests: Sequence[ScoreRequest]) -> None:
        """A forward broke off: what its first layers wrote must not stay where others will look past their length."""
        for request in requests:
            self.cache.clear(request.slot, self.cache.lengths[request.slot], self.cache.extents.sizes[request.slot])

    def expect(self, lengths: Mapping[int, int]) -> None:
        """See `HFTarget.expect`."""
        self.cache.reserve(lengths)
        for slot, length in lengths.items():
            self.cache.lengths[slot] = max(self.cache.lengths[slot], length)
            if self.taps is not None:
                self.taps.lengths[slot] = max(self.taps.lengths[slot], length)

    def rewind(self, slot: int, length: int, path: Sequence[int]) -> None:
        """See `Target.rewind`."""
        current, start = self.length(slot), self._starts[slot]
        if not 0 <= length <= current:
            raise ParameterError("length", length, f"between 0 and the slot's length {current}")
        kept = list(path) if path else list(range(max(0, length - start)))
        if path or self.parents[slot] is not None:
            check_path(kept, length, start=start, num_tokens=current - start, parents=self.parents[slot])
        moved = kept if kept != list(range(len(kept))) else []
        branches = self.branches.pop(slot, None)
        entries = kept if branches is None else [branches.own[node] - start for node in kept]
        if entries != list(range(len(kept))):
            self.cache.gather(slot, start, entries)
        self.cache.rewind(slot, length, 0 if branches is None else branches.stop)
        if self.taps is not None:
            self.taps.rewind(slot, length, start, moved)
        self._starts[slot], self.parents[slot] = min(start, length), None

    def recurrent_states(self, slot: int) -> dict[str, torch.Tensor]:
        """What the layers with a recurrent state hold after the slot's tokens, by name."""
        recurrent, slot = self.cache.recurrent, self.checked(slot)
        if recurrent is None:
            return {}
        return {
            f"layer {layer}, {part}": tensor
            for layer in recurrent.layers
            for part, tensor in zip(("convolution", "state"), recurrent.state(slot, layer), strict=False)
        }

    def release(self, slot: int) -> None:
        """See `Target.release`."""
        self.cache.free(self.checked(slot))
        self._starts[slot], self.parents[slot] = 0, None
        self.branches.pop(slot, None)
        self._num_releases[slot] += 1
        if self.taps is not None:
            self.taps.rewind(slot, 0, 0, ())

    def num_releases(self, slot: int) -> int:
        return self._num_releases[slot]

    def reachable(self, slot: int, length: int) -> int:
        """See `Target.reachable`."""
        return self.cache.reachable(slot, min(length, self.length(slot)))

    def copy(self, source: int, slot: int, length: int) -> None:
        """See `Target.copy`."""
        if source == slot or not 0 <= length <= self.length(source):
            raise ParameterError("length", length, f"at most {self.length(source)}, what another slot holds")
        self.cache.copy(source, self.checked(slot), length)
        self._starts[slot], self.parents[slot] = length, None
        if self.taps is not None:
            self.taps.copy(source, slot, length)
