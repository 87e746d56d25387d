"""Forwards that the device drives: how many tokens are committed, and which, is known there before the host knows it.

Each of so many requests appends `width` tokens of a chain to its slot, from a place that a tensor names. The tables
(`tables.py`) are written by the device's own operations, so that nothing waits for the host between steps. What was
appended and isn't committed is overwritten by the next forward, or cleared when the host takes over.

A batch of fewer requests is filled up with copies of its first one: `source` [requests] names the request that each
place stands for, its own or 0. Nothing of a copy is cached or read; it costs its arithmetic and saves a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from draftproof.config import MAX_SPECULATIVE_TOKENS
from draftproof.targets.cache import SlotCache
from draftproof.targets.static.steps import StaticSteps
from draftproof.targets.static.tables import NO_COLUMN, Kind, Tables
from draftproof.targets.taps import TapStore

MOST_WIDTH: Final = MAX_SPECULATIVE_TOKENS + 1
"""Tokens of a request in a step. Buffers have room for so many beyond the longest context, whatever is drafted: graphs
would be of no use after another length had moved them."""


class ChainTables:
    """Writes a bucket's tables from tensors: `width` tokens for each of `num_requests` requests.

    most: tokens of a row of attention. In a bucket of the kind BLOCK every row reads all of its request's tokens.
    """

    def __init__(self, tables: Tables, num_requests: int, width: int, most: int) -> None:
        device = tables.all.device
        self._tables, self._count = tables, num_requests * width
        self._places = torch.arange(width, device=device, dtype=torch.int32)
        pieces = [(request, begin) for request in range(num_requests) for begin in range(0, width, most)]
        self._requests = torch.tensor([request for request, _ in pieces], device=device)
        self._begins = torch.tensor([begin for _, begin in pieces], device=device, dtype=torch.int32)
        firsts = torch.tensor([request * width + begin for request, begin in pieces], device=device)
        sizes = torch.tensor([min(most, width - begin) for _, begin in pieces], device=device, dtype=torch.int32)
        self._sizes = sizes
        self._ends = torch.full_like(sizes, width) if tables.bucket.kind == Kind.BLOCK else self._begins + sizes
        tables.all.zero_()
        tables.columns.fill_(NO_COLUMN)
        # Logits of copies are read, though nothing comes of them.
        tables.count.fill_(self._count)
        self._rows = tables.rows[: len(pieces)]
        self._rows[:, 0], self._rows[:, 5] = firsts, firsts

    def fill(self, tokens: torch.Tensor, starts: torch.Tensor, offsets: torch.Tensor, is_real: torch.Tensor) -> None:
        """tokens [requests, width]; starts, offsets [requests] int32: the slots' lengths and first columns.

        is_real [requests]: False for copies, which come last.
        """
        tables, count = self._tables, self._count
        positions = starts[:, None] + self._places
        tables.ids[:count] = tokens.flatten()
        tables.positions[:count] = positions.flatten()
        tables.columns[:count] = columns_of(positions, offsets, is_real)
        own_starts = starts[self._requests]
        self._rows[:, 1] = self._sizes * is_real[self._requests]
        self._rows[:, 2] = offsets[self._requests]
        self._rows[:, 3] = own_starts + self._begins
        self._rows[:, 4] = own_starts + self._ends


def columns_of(positions: torch.Tensor, offsets: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
    """[requests * n] int32 from positions [requests, n] and the slots' first columns; a copy's tokens have none."""
    return torch.where(is_real[:, None], positions + offsets[:, None], NO_COLUMN).flatten().int()


def reals(source: torch.Tensor) -> torch.Tensor:
    """[requests] which places stand for a request of their own."""
    return source == torch.arange(len(source), device=source.device)


class FollowingForward:
    """`width` tokens for each of `num_requests` slots, of at most `num_keys` entries each, as calls over fixed buffers.

    num_tokens: of the forward, padding included; None for as many as its bucket has.
    """

    def __init__(
        self,
        static: StaticSteps,
        cache: SlotCache,
        taps: TapStore | None,
        *,
        num_requests: int,
        width: int,
        num_keys: int,
        num_tokens: int | None,
    ) -> None:
        self._static, self._cache, self._taps = static, cache, taps
        self._count, self._num_requests, self._width = num_requests * width, num_requests, width
        self._step = static.chain_step(num_requests, width, num_keys, num_tokens)
        tables = self._step.tables
        self._fill = ChainTables(tables, num_requests, width, static.most_tokens)
        self._slots = torch.zeros(num_requests, dtype=torch.int64, device=tables.all.device)
        self._offsets = torch.zeros(num_requests, dtype=torch.int32, device=tables.all.device)
        self._known: tuple[Any, ...] = ()
        if taps is not None:
            taps.reserve(num_keys + MOST_WIDTH)

    @property
    def buffers(self) -> tuple[int, ...]:
        """Where what it reads and writes besides its own lies: a captured graph is of no use once that changes."""
        taps = () if self._taps is None else (self._taps.rows.data_ptr(),)
        return (*(group.keys.data_ptr() for group in self._cache.groups), *taps)

    def use(self, slots: Sequence[int]) -> None:
        """The requests' slots from the next call on, where the cache has them now."""
        offsets = [self._cache.extents.offsets[slot] for slot in slots]
        if (slots, offsets) != self._known:
            self._slots.copy_(torch.tensor(slots))
            self._offsets.copy_(torch.tensor(offsets, dtype=torch.int32))
            self._known = (list(slots), offsets)

    def __call__(self, tokens: torch.Tensor, starts: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """tokens [requests, width], starts [requests] int32: logits [requests * width, V]. Taps are recorded.

        source [requests]: see the module; slots, tokens and starts of a copy are those of what it stands for.
        """
        self._fill.fill(tokens, starts, self._offsets, reals(source))
        logits = self._static.forward(self._step)
        if self._taps is not None:
            self._taps.record_at(self._slots, starts, self._width, self._step.seen, source)
        return logits[: self._count]
