"""Runs a recurrence over segments of different lengths, a token of each at a time.

Every operation is elementwise over the segments, and sums are added up in a fixed order, so that a segment's bits
don't depend on which others are beside it or on where its tokens are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import torch

Tensors = tuple[torch.Tensor, ...]


class Recurrence(Protocol):
    """What a token does to a state [segments, …], and what it reads of it."""

    def advance(self, state: torch.Tensor, *writes: torch.Tensor) -> torch.Tensor:
        """The state after one token of each segment; writes: [segments, …] each."""
        ...

    def read(self, state: torch.Tensor, *reads: torch.Tensor) -> torch.Tensor:
        """What the tokens see of it."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments that are all of the tokens. order: token indices in the order in which they are computed. counts: how
    many segments have a token at each step. by_length: the segments, longest first."""

    order: torch.Tensor
    counts: tuple[int, ...]
    by_length: tuple[int, ...]

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> Plan:
        """Segments one after another, of one token at least."""
        firsts = [0, *accumulate(lengths)]
        by_length = sorted(range(len(lengths)), key=lambda segment: -lengths[segment])
        order, counts = [], []
        for step in range(max(lengths)):
            active = [segment for segment in by_length if lengths[segment] > step]
            order += [firsts[segment] + step for segment in active]
            counts.append(len(active))
        return Plan(torch.tensor(order, device=device), tuple(counts), tuple(by_length))


def scan(
    recurrence: Recurrence, state: torch.Tensor, plan: Plan, writes: Tensors, reads: Tensors | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states after the segments' last tokens, and what each token reads of its own, [tokens, …].

    state: [segments, …], longest first, as the result is. writes, reads: [tokens, …] each. reads None: of no
    interest.
    """
    written = [write.index_select(0, plan.order) for write in writes]
    read = None if reads is None else [part.index_select(0, plan.order) for part in reads]
    ended: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []
    begin = 0
    for count in plan.counts:
        if count < len(state):
            ended.append(state[count:])
            state = state[:count]
        state = recurrence.advance(state, *(write[begin : begin + count] for write in written))
        if read is not None:
            outputs.append(recurrence.read(state, *(part[begin : begin + count] for part in read)))
        begin += count
    final = torch.cat([state, *reversed(ended)]) if ended else state
    if read is None:
        return final, state.new_zeros(0)
    found = torch.cat(outputs)
    return final, torch.empty_like(found).index_copy_(0, plan.order, found)


def fixed_sum(terms: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum over `dim` by halves: its order is a function of the number of terms alone."""
    while (num_terms := terms.shape[dim]) > 1:
        half = num_terms // 2
        added = terms.narrow(dim, 0, half) + terms.narrow(dim, half, half)
        if num_terms % 2:
            added.narrow(dim, 0, 1).add_(terms.narrow(dim, num_terms - 1, 1))
        terms = added
    return terms.squeeze(dim)
