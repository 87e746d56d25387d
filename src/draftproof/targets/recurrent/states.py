"""The recurrent states of all slots, and what it takes to take tokens back.

Of each slot there are two states: `base`, before the tokens that may be taken back, and `end`, after all of them; and
the recorded inputs of the tokens between. A rewind drops inputs. Before the slot's next forward, `settle` runs the
recurrence over those that are left, from `base`, and what comes out is `base` and `end` from then on.

A slot can be rewound to where it was rewound last, to the end of the context that was appended last, and to any length
beyond; or emptied. Other lengths are gone, and asking for one is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch

from draftproof.errors import ModelError, ParameterError
from draftproof.targets.recurrent.convolution import extended
from draftproof.targets.recurrent.scan import Plan, Recurrence, Tensors, scan

MOST_RECORDED: Final = 256
"""Tokens whose inputs are kept without a rewind; then the older half can't be taken back any more."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """One layer's: `reach` earlier inputs of `channels` numbers, and a state, None for a convolution alone."""

    channels: int
    reach: int
    state: tuple[int, ...] | None
    dtype: torch.dtype
    state_dtype: torch.dtype
    device: torch.device

    @property
    def num_bytes(self) -> int:
        """Of one slot."""
        state = 0 if self.state is None else prod(self.state) * self.state_dtype.itemsize
        return 2 * (self.reach * self.channels * self.dtype.itemsize + state)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one layer was given for some tokens of one slot: its convolution [tokens, channels], and its recurrence."""

    convolved: torch.Tensor
    writes: Tensors


@dataclass(frozen=True, slots=True)
class Found:
    """What one layer found in a forward: inputs of each segment; the states after them, [segments, …]."""

    inputs: list[Inputs]
    convolved: torch.Tensor
    state: torch.Tensor | None


@dataclass(slots=True)
class _Buffers:
    """One layer's states, [slots, …]: base and end. recurrence: as its forwards have it."""

    convolved: tuple[torch.Tensor, torch.Tensor]
    state: tuple[torch.Tensor, torch.Tensor] | None
    recurrence: Recurrence | None = None

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self.convolved] if self.state is None else [self.convolved, self.state]


@dataclass(slots=True)
class _Slot:
    """start: where `base` stands. recorded: by layer, what came after it. num_recorded of them, num_kept not taken
    back. is_settled: no token before the end of `kept` will be taken back."""

    start: int = 0
    num_recorded: int = 0
    num_kept: int = 0
    is_settled: bool = True
    recorded: dict[int, list[Inputs]] = field(default_factory=dict)


class RecurrentStates:
    """shapes: by layer."""

    def __init__(self, shapes: Mapping[int, StateShape], num_slots: int) -> None:
        self._slots = [_Slot() for _ in range(num_slots)]
        self._layers = {
            layer: _Buffers(
                _twice(num_slots, (shape.reach, shape.channels), shape.dtype, shape.device),
                None if shape.state is None else _twice(num_slots, shape.state, shape.state_dtype, shape.device),
            )
            for layer, shape in shapes.items()
        }
        self._filled: dict[int, list[torch.Tensor]] = {}

    @property
    def layers(self) -> list[int]:
        """Indices of the recurrent layers."""
        return list(self._layers)

    def length(self, slot: int) -> int:
        return self._slots[slot].start + self._slots[slot].num_kept

    def state(self, slot: int, layer: int) -> list[torch.Tensor]:
        """The convolution's [reach, channels] and, where there is one, the recurrence's, after the slot's tokens."""
        self.settle([slot])
        return [end[slot].clone() for _, end in self._layers[layer].pairs()]

    def ends(self, layer: int, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the slots' next tokens start from: the convolution's and the recurrence's, [slots, …]."""
        buffers = self._layers[layer]
        index = torch.tensor(slots, device=buffers.convolved[1].device)
        state = None if buffers.state is None else buffers.state[1].index_select(0, index)
        return buffers.convolved[1].index_select(0, index), state

    def remember(self, layer: int, recurrence: Recurrence) -> None:
        """What the layer's states are advanced by when they are settled."""
        self._layers[layer].recurrence = recurrence

    def append(
        self, slots: Sequence[int], counts: Sequence[int], found: Mapping[int, Found], *, settled: Sequence[bool]
    ) -> None:
        """A forward has run: counts[i] tokens in slots[i]. settled: those of a context, not to be taken back later."""
        for layer, one in found.items():
            buffers = self._layers[layer]
            index = torch.tensor(slots, device=one.convolved.device)
            buffers.convolved[1].index_copy_(0, index, one.convolved)
            if buffers.state is not None and one.state is not None:
                buffers.state[1].index_copy_(0, index, one.state)
        for place, (slot, count, is_settled) in enumerate(zip(slots, counts, settled, strict=True)):
            entry = self._slots[slot]
            for layer, one in found.items():
                entry.recorded.setdefault(layer, []).append(one.inputs[place])
            entry.num_recorded += count
            entry.num_kept, entry.is_settled = entry.num_recorded, is_settled

    def rewind(self, slot: int, length: int) -> None:
        """Keep `length` tokens. Raises ParameterError for a length whose state is gone."""
        entry = self._slots[slot]
        if length == 0:
            self.free(slot)
            return
        if not entry.start <= length <= self.length(slot):
            raise ParameterError(
                "length",
                length,
                f"0, or between {entry.start} and {self.length(slot)}",
                "a recurrent state can be taken back over the tokens since the last rewind, not further",
            )
        entry.num_kept, entry.is_settled = length - entry.start, True

    def free(self, slot: int) -> None:
        """No tokens."""
        self._slots[slot] = _Slot()
        for buffers in self._layers.values():
            for pair in buffers.pairs():
                for buffer in pair:
                    buffer[slot] = 0

    def reachable(self, slot: int, length: int) -> int:
        """The most tokens, `length` at most, that the slot can be rewound to or copied up to."""
        return min(length, self.length(slot)) if length >= self._slots[slot].start else 0

    def copy(self, source: int, slot: int, length: int) -> None:
        """Give `slot` the state after the first `length` tokens of `source`. Raises ParameterError as `rewind`."""
        if length == 0:
            self.free(slot)
            return
        if self.reachable(source, length) != length:
            raise ParameterError("length", length, f"0, or {self._slots[source].start} or more, which is still there")
        entry = self._slots[source]
        recorded = {layer: list(inputs) for layer, inputs in entry.recorded.items()}
        self._slots[slot] = _Slot(entry.start, entry.num_recorded, length - entry.start, True, recorded)
        for buffers in self._layers.values():
            for pair in buffers.pairs():
                for buffer in pair:
                    buffer[slot] = buffer[source]

    def settle(self, slots: Sequence[int], num_more: int = 0) -> None:
        """Bring `base` up to what won't be taken back, and `end` to the tokens that are kept.

        num_more: tokens that are about to be recorded.
        """
        again: list[tuple[int, int]] = []
        for slot in slots:
            entry = self._slots[slot]
            num_settled = entry.num_kept if entry.is_settled else 0
            if not entry.is_settled and entry.num_recorded + num_more > MOST_RECORDED:
                num_settled = max(entry.num_kept - MOST_RECORDED // 2, 0)
            if num_settled in (0, entry.num_recorded):
                self._take(slot, 1 if num_settled else 0, entry.is_settled or num_settled > 0)
            else:
                again.append((slot, num_settled))
        if again:
            self._advance(again)

    def _take(self, slot: int, which: int, is_settled: bool) -> None:
        """Base and end become the one that is given, and nothing is recorded any more."""
        entry = self._slots[slot]
        if not is_settled or not entry.num_recorded:
            return
        for buffers in self._layers.values():
            for pair in buffers.pairs():
                pair[1 - which][slot] = pair[which][slot]
        self._slots[slot] = _Slot(entry.start + which * entry.num_recorded)

    def _advance(self, slots: Sequence[tuple[int, int]]) -> None:
        """Run the recurrence again over the first recorded tokens of each slot, so many of them."""
        lengths = [count for _, count in slots]
        for layer in self._slots[slots[0][0]].recorded:
            buffers = self._layers[layer]
            index = torch.tensor([slot for slot, _ in slots], device=buffers.convolved[0].device)
            inputs = [joined(self._slots[slot].recorded[layer], 0, count) for slot, count in slots]
            rows = extended(
                torch.cat([one.convolved for one in inputs]), buffers.convolved[0].index_select(0, index), lengths
            )
            found = [last_of(rows, buffers.convolved[0].shape[1])]
            if buffers.state is not None:
                if buffers.recurrence is None:
                    raise ModelError(f"layer {layer} has recorded inputs and no recurrence")
                plan = Plan.of(lengths, index.device)
                by_length = torch.tensor(plan.by_length, device=index.device)
                writes = tuple(torch.cat(parts) for parts in zip(*(one.writes for one in inputs), strict=True))
                before = buffers.state[0].index_select(0, index.index_select(0, by_length))
                after, _ = scan(buffers.recurrence, before, plan, writes, None)
                found.append(torch.empty_like(after).index_copy_(0, by_length, after))
            for (base, end), states in zip(buffers.pairs(), found, strict=True):
                base.index_copy_(0, index, states)
                whole = [place for place, (slot, count) in enumerate(slots) if count == self._slots[slot].num_kept]
                if whole:
                    some = torch.tensor(whole, device=index.device)
                    end.index_copy_(0, index.index_select(0, some), states.index_select(0, some))
        for slot, count in slots:
            self._drop(slot, count)

    def _drop(self, slot: int, count: int) -> None:
        entry = self._slots[slot]
        start, num_left = entry.start + count, entry.num_kept - count
        if not num_left:
            self._slots[slot] = _Slot(start)
            return
        recorded = {layer: [joined(inputs, count, entry.num_kept)] for layer, inputs in entry.recorded.items()}
        self._slots[slot] = _Slot(start, num_left, num_left, False, recorded)

    def fill_random(self, length: int, generator: torch.Generator) -> None:
        """Random states after `length` tokens, the same in all slots (for self-checks); `restart` goes back to them."""
        for layer, buffers in self._layers.items():
            self._filled[layer] = [
                torch.randn(base.shape[1:], generator=generator).to(base) for base, _ in buffers.pairs()
            ]
        for slot in range(len(self._slots)):
            self.restart(slot, length)

    def restart(self, slot: int, length: int) -> None:
        """As `fill_random` left the slot."""
        self._slots[slot] = _Slot(length)
        for layer, filled in self._filled.items():
            for pair, states in zip(self._layers[layer].pairs(), filled, strict=True):
                for buffer in pair:
                    buffer[slot] = states


def joined(inputs: Sequence[Inputs], start: int, stop: int) -> Inputs:
    """The inputs of tokens start .. stop - 1 of several pieces."""
    writes = zip(*(one.writes for one in inputs), strict=True)
    return Inputs(
        torch.cat([one.convolved for one in inputs])[start:stop],
        tuple(torch.cat(parts)[start:stop] for parts in writes),
    )


def last_of(rows: Sequence[torch.Tensor], reach: int) -> torch.Tensor:
    """[segments, reach, channels]: the last inputs of each `extended` row."""
    return torch.stack([row[len(row) - reach :] for row in rows])


def _twice(
    num_slots: int, size: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    one, other = (torch.zeros(num_slots, *size, dtype=dtype, device=device) for _ in range(2))
    return one, other
