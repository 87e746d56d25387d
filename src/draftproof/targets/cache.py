"""A transformers cache with slots: preallocated keys and values, one length per slot.

Layout: all layers of one shape share two tensors, keys [layers, slots, kv_heads, capacity, key dim] and values
likewise, so that rewinding, clearing and gathering a tree's path are one operation for the whole model, and the
views that a forward writes to and reads from are cut once per forward, not once per layer.

Capacity doubles on demand. Sliding-window layers keep every entry: the window is in the mask, so that rewinding is
arithmetic on the length for them too. Entries at or beyond a slot's length are zero or are about to be overwritten;
they are masked, and they are finite, because 0 · NaN would leak through a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache

GROWTH_STEP = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer caches for one token: `heads` keys of `key_dim` and values of `value_dim` numbers."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True)
class _Group:
    """Layers of one shape and their buffers."""

    layers: list[int]
    shape: LayerShape
    keys: torch.Tensor
    values: torch.Tensor


class SlotCache(Cache):
    """Keys and values of `num_slots` sequences; `lengths[slot]` entries of each are valid."""

    def __init__(self, shapes: Sequence[LayerShape], num_slots: int, max_length: int) -> None:
        """shapes: one per layer. max_length: the most columns that a slot may ever hold, margin included."""
        super().__init__(layers=[])
        self.num_slots, self.max_length, self.capacity = num_slots, max_length, 0
        self.lengths = [0] * num_slots
        self._groups: list[_Group] = []
        for shape in dict.fromkeys(shapes):
            layers = [index for index, other in enumerate(shapes) if other == shape]
            self._groups.append(_Group(layers, shape, *self._buffers(shape, len(layers), 0)))
        self._num_layers = len(shapes)
        self._write_keys: list[torch.Tensor] = []
        self._write_values: list[torch.Tensor] = []
        self._read_keys: list[torch.Tensor] = []
        self._read_values: list[torch.Tensor] = []
        self._columns: tuple[torch.Tensor, torch.Tensor] | None = None
        self._gather_slots: torch.Tensor | None = None
        self._sources: tuple[torch.Tensor, torch.Tensor] | None = None

    def _buffers(self, shape: LayerShape, num_layers: int, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = (num_layers, self.num_slots, shape.heads, capacity)
        return (
            torch.zeros(*size, shape.key_dim, dtype=shape.dtype, device=shape.device),
            torch.zeros(*size, shape.value_dim, dtype=shape.dtype, device=shape.device),
        )

    def reserve(self, columns: int) -> None:
        """Make room for `columns` entries in every slot, keeping what is cached."""
        if columns <= self.capacity:
            return
        capacity = max(columns, min(max(GROWTH_STEP, 2 * self.capacity), self.max_length))
        for group in self._groups:
            keys, values = self._buffers(group.shape, len(group.layers), capacity)
            keys[:, :, :, : self.capacity] = group.keys
            values[:, :, :, : self.capacity] = group.values
            group.keys, group.values = keys, values
        self.capacity = capacity

    def prepare(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        width: int,
        key_length: int,
        sources: torch.Tensor | None = None,
    ) -> None:
        """Say where the next forward's rows go: row r writes columns starts[r] .. starts[r] + width - 1 of slots[r]
        and reads columns 0 .. key_length - 1. Slots are distinct.

        sources [rows, width, key_length]: for each token of each row, the column that it reads in place of each
        column; then `update` returns keys and values for every token, [rows · width, heads, key_length, dim]."""
        self.reserve(max(key_length, max(starts) + width))
        first, count = slots[0], len(slots)
        contiguous = list(slots) == list(range(first, first + count))
        same_start = contiguous and len(set(starts)) == 1
        device = self._groups[0].shape.device
        self._columns, self._gather_slots, self._sources = None, None, None
        if sources is not None:
            self._sources = (torch.arange(count, device=device)[:, None, None], sources)
        if not same_start:
            index = torch.tensor([list(slots), list(starts)], device=device)
            offsets = torch.arange(width, device=device)
            self._columns = (index[0, :, None], index[1, :, None] + offsets)
            if not contiguous:
                self._gather_slots = index[0]
        views: list[list[torch.Tensor]] = [[None] * self._num_layers for _ in range(4)]  # type: ignore[list-item]
        for group in self._groups:
            for buffer, write, read in ((group.keys, 0, 2), (group.values, 1, 3)):
                if same_start:
                    target = buffer[:, first : first + count, :, starts[0] : starts[0] + width]
                else:
                    target = buffer.transpose(2, 3)
                source = buffer[:, first : first + count] if contiguous else buffer
                for layer, written, seen in zip(
                    group.layers, target.unbind(0), source[:, :, :, :key_length].unbind(0), strict=True
                ):
                    views[write][layer], views[read][layer] = written, seen
        self._write_keys, self._write_values, self._read_keys, self._read_values = views

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the forward's keys and values [rows, heads, width, dim]; return what its rows attend to."""
        if self._columns is None:
            self._write_keys[layer_idx].copy_(key_states)
            self._write_values[layer_idx].copy_(value_states)
        else:
            self._write_keys[layer_idx][self._columns] = key_states.transpose(1, 2)
            self._write_values[layer_idx][self._columns] = value_states.transpose(1, 2)
        keys, values = self._read_keys[layer_idx], self._read_values[layer_idx]
        if self._gather_slots is not None:
            keys, values = keys.index_select(0, self._gather_slots), values.index_select(0, self._gather_slots)
        if self._sources is not None:
            rows, columns = self._sources
            keys, values = keys[rows, :, columns].flatten(0, 1), values[rows, :, columns].flatten(0, 1)
            return keys.transpose(1, 2), values.transpose(1, 2)
        return keys, values

    def clear(self, slot: int, start: int, stop: int) -> None:
        """Zero the columns start .. stop - 1 of the slot, in every layer."""
        stop = min(stop, self.capacity)
        if start < stop:
            for group in self._groups:
                group.keys[:, slot, :, start:stop] = 0
                group.values[:, slot, :, start:stop] = 0

    def copy(self, source: int, slot: int, length: int) -> None:
        """Give `slot` the first `length` entries of `source`."""
        for group in self._groups:
            for buffer in (group.keys, group.values):
                buffer[:, slot, :, :length] = buffer[:, source, :, :length]

    def fill_random(self, length: int, generator: torch.Generator) -> None:
        """Random entries in the first `length` columns of every slot, the same for all slots (for self-checks)."""
        self.reserve(length)
        for group in self._groups:
            for buffer in (group.keys, group.values):
                size = (buffer.shape[0], 1, buffer.shape[2], length, buffer.shape[4])
                buffer[:, :, :, :length] = torch.randn(size, generator=generator).to(buffer)

    def gather(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the columns start + path[i] to start + i, in every layer."""
        for group in self._groups:
            index = torch.tensor(path, device=group.shape.device) + start
            for buffer in (group.keys, group.values):
                buffer[:, slot, :, start : start + len(path)] = buffer[:, slot].index_select(2, index)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0. Rows differ in length, so positions are given to the model; one that derives them from here
        instead is found by `selfcheck.py`."""
        return 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.max_length

    def __len__(self) -> int:
        return self._num_layers

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return False
