"""Where each slot's entries lie in a cache that all slots share: contiguous runs of columns, in steps of `STEP`.

A slot grows where it lies if the columns behind it are free, else it moves to the first gap that is wide enough, else
all slots are pushed together. So any set of lengths that fits by its sum fits in fact, and keys and values are read
where they lie. A move tells the owner of the columns what to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

STEP: Final = 256
"""Columns come in steps of so many."""


def num_columns(length: int) -> int:
    """The columns that `length` entries take."""
    return STEP * -(-length // STEP)


class Extents:
    """offsets[slot], sizes[slot]: the slot's columns; size 0 for none.

    capacity: columns in all. move(slot, old offset, new offset) copies a slot's entries, old and new may overlap.
    """

    def __init__(self, num_slots: int, capacity: int, move: Callable[[int, int, int], None]) -> None:
        self.offsets, self.sizes = [0] * num_slots, [0] * num_slots
        self.capacity, self._move = capacity, move

    def reserve(self, slot: int, length: int) -> bool:
        """Give the slot columns for `length` entries; False, with nothing changed, if there is no gap for them."""
        size = num_columns(length)
        if size <= self.sizes[slot]:
            return True
        gaps = self._gaps(slot)
        for begin, end in gaps:
            if begin <= self.offsets[slot] and self.offsets[slot] + size <= end and self.sizes[slot]:
                self.sizes[slot] = size
                return True
        for begin, end in gaps:
            if end - begin >= size:
                self._place(slot, begin, size)
                return True
        return False

    def arrange(self, lengths: Sequence[int], wanted: Sequence[int]) -> None:
        """Push all slots together, with columns for `wanted` entries each, at least the `lengths` that they hold."""
        self.sizes = [num_columns(length) for length in lengths]
        order = sorted(
            (s for s, length in enumerate(wanted) if length), key=lambda s: (not self.sizes[s], self.offsets[s])
        )
        begin = 0
        for slot in order:
            self._place(slot, begin, self.sizes[slot])
            begin += self.sizes[slot]
        # Then apart again from the last one on, so that nobody is moved onto what another holds.
        end = sum(num_columns(wanted[slot]) for slot in order)
        for slot in reversed(order):
            end -= num_columns(wanted[slot])
            self._place(slot, end, num_columns(wanted[slot]))

    def free(self, slot: int) -> None:
        """The slot has no columns any more."""
        self.sizes[slot] = 0

    def _place(self, slot: int, offset: int, size: int) -> None:
        if self.sizes[slot] and offset != self.offsets[slot]:
            self._move(slot, self.offsets[slot], offset)
        self.offsets[slot], self.sizes[slot] = offset, size

    def _gaps(self, besides: int) -> list[tuple[int, int]]:
        """Free columns, as if the slot `besides` had none."""
        taken = sorted(
            (offset, offset + size)
            for slot, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True))
            if size and slot != besides
        )
        gaps, begin = [], 0
        for low, high in taken:
            if low > begin:
                gaps.append((begin, low))
            begin = high
        if begin < self.capacity:
            gaps.append((begin, self.capacity))
        return gaps
