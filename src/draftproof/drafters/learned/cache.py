"""Keys and values of a drafter's layers: a row per slot, every row as long as the longest.

A drafter's bits are nobody's business, its cache is small, and most of what it writes is overwritten in the next pass:
so a plain rectangle with a column per position, and a mask, are enough. Layers of transformers may write to it as well
(`update` is what they call).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

_GROWTH_STEP = 256


class DraftCache(Cache):
    """[layers, heads, slots, columns, dim]. What a row holds beyond what was written for it is finite."""

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int = 0,
    ) -> None:
        super().__init__(layers=[])
        self.num_layers, self.num_slots, self.capacity = num_layers, num_slots, 0
        self._sizes = (num_layers, num_heads, num_slots)
        self.keys = torch.zeros(*self._sizes, 0, key_dim, dtype=dtype, device=device)
        self.values = torch.zeros(*self._sizes, 0, value_dim, dtype=dtype, device=device)
        self.reserve(capacity)
        self._rows: torch.Tensor | slice = slice(0)
        self._write: Any = None
        self._key_length = 0

    def reserve(self, columns: int) -> None:
        """Room for so many columns in every row, keeping what is there."""
        if columns <= self.capacity:
            return
        # The first reservation is taken as it is: whoever knows the length doesn't pay for growth.
        grown = max(columns, 2 * self.capacity, _GROWTH_STEP) if self.capacity else columns
        for name in ("keys", "values"):
            old: torch.Tensor = getattr(self, name)
            new = old.new_zeros(*self._sizes, grown, old.shape[-1])
            new[..., : self.capacity, :] = old
            setattr(self, name, new)
        self.capacity = grown

    def prepare(self, slots: Sequence[int], starts: Sequence[int], width: int, key_length: int) -> None:
        """The next `update` of every layer writes `width` columns from starts[r] on of slots[r], and reads the first
        `key_length` columns. Slots are distinct."""
        self.reserve(max(key_length, max(starts) + width))
        device, self._key_length = self.keys.device, key_length
        first, count = slots[0], len(slots)
        if list(slots) == list(range(first, first + count)):
            self._rows = slice(first, first + count)
        else:
            self._rows = torch.tensor(list(slots), device=device)
        if isinstance(self._rows, slice) and len(set(starts)) == 1:
            self._write = (slice(None), self._rows, slice(starts[0], starts[0] + width))
        else:
            index = torch.tensor([list(slots), list(starts)], device=device)
            columns = index[1, :, None] + torch.arange(width, device=device)
            self._write = (slice(None), index[0, :, None], columns)

    def columns(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's keys and values [heads, slots * capacity, dim], slot after slot: views."""
        return self.keys[layer_idx].flatten(1, 2), self.values[layer_idx].flatten(1, 2)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, heads, width, dim]; return the rows' keys and values [rows, heads, key_length, dim]."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        for buffer, states in ((keys, key_states), (values, value_states)):
            buffer[self._write] = states.transpose(0, 1).to(buffer.dtype)
        return self._read(keys), self._read(values)

    def write(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """All layers' [layers, rows, heads, width, dim] at once, where the next `update` would write one's."""
        for buffer, states in ((self.keys, keys), (self.values, values)):
            buffer[(slice(None), *self._write)] = states.transpose(1, 2).to(buffer.dtype)

    def _read(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer[:, self._rows, : self._key_length].transpose(0, 1)

    def entries(self, slot: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the slot's first `length` columns, [layers, heads, length, dim]."""
        return self.keys[:, :, slot, :length], self.values[:, :, slot, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: rows differ in length, and positions are given to the layers."""
        return 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.capacity

    def __len__(self) -> int:
        return self.num_layers

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return False
