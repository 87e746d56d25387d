"""A transformers cache with slots: keys and values in columns that all slots share, one length per slot.

Layers with a recurrent state have theirs in `recurrent` (`recurrent/states.py`), which follows what is done to a slot.

Layout: all layers of one shape share two tensors, keys [layers, kv_heads, columns, key dim] and values likewise, so
that rewinding, clearing, copying and gathering a tree's path are one operation for the whole model. A slot's entries
lie in one piece (`extents.py`), so that attention reads them where they are.

All slots together have `max_columns`, planned when the target is made. On a GPU they are allocated then; on a CPU the
tensors grow to it as they are needed. Sliding-window layers keep every entry: the window is in the mask, so that
rewinding is arithmetic on the length for them too. Entries at or beyond a slot's length are zero, or finite and
masked, or about to be overwritten: 0 · NaN would leak through a mask. Static forwards (`static/`) never load what they
don't see, so rewinding for them is a number and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache

from draftproof.errors import ModelError
from draftproof.targets.extents import STEP, Extents, num_columns
from draftproof.targets.recurrent.forward import RecurrentForward
from draftproof.targets.recurrent.states import RecurrentStates, StateShape


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer caches for one token: `heads` keys of `key_dim` and values of `value_dim` numbers; none at all
    where a layer has no attention."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def num_bytes(self) -> int:
        """Of one token."""
        return self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(slots=True)
class Group:
    """Layers of one shape and their buffers [layers, heads, columns, dim]."""

    layers: list[int]
    shape: LayerShape
    keys: torch.Tensor
    values: torch.Tensor


class Forward(Protocol):
    """What a forward does with the keys and values that a layer has computed."""

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write them; return what the layer's attention is given."""
        ...


class SlotCache(Cache):
    """Keys and values of `num_slots` sequences; `lengths[slot]` entries of each are valid."""

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_slots: int,
        max_columns: int,
        recurrent: Mapping[int, StateShape] | None = None,
        *,
        clears: bool = True,
    ) -> None:
        """shapes: one per layer. max_columns: of all slots together, rounded up to a step. recurrent: by layer.

        clears: zero what a rewind drops, for forwards that read it under a mask.
        """
        super().__init__(layers=[])
        self.num_slots, self.max_columns = num_slots, num_columns(max_columns)
        self.lengths = [0] * num_slots
        self._clears = clears
        self.forward: Forward | None = None
        self.recurrent = RecurrentStates(recurrent, num_slots) if recurrent else None
        self.recurrent_forward: RecurrentForward | None = None
        self._num_layers = len(shapes)
        self.groups: list[Group] = []
        on_cpu = all(shape.device.type == "cpu" for shape in shapes)
        self.extents = Extents(num_slots, 0 if on_cpu else self.max_columns, self._move)
        for shape in dict.fromkeys(shapes):
            layers = [index for index, other in enumerate(shapes) if other == shape]
            self.groups.append(Group(layers, shape, *self._buffers(shape, len(layers), self.extents.capacity)))

    @property
    def capacity(self) -> int:
        """Columns that are allocated."""
        return self.extents.capacity

    def reserve(self, wanted: Mapping[int, int]) -> None:
        """Make room for `wanted[slot]` entries in each slot. ModelError, with nothing lost, if there isn't so much."""
        if not all(self.widen(slot, length) for slot, length in wanted.items()):
            self._arrange(wanted)

    def widen(self, slot: int, length: int) -> bool:
        """Give the slot columns for `length` entries, if that takes no pushing together of all slots."""
        while not self.extents.reserve(slot, length):
            if self.capacity == self.max_columns:
                return False
            missing = num_columns(length) - self.extents.sizes[slot]
            self._grow(min(max(2 * self.capacity, self.capacity + missing, STEP), self.max_columns))
        return True

    def _arrange(self, wanted: Mapping[int, int]) -> None:
        lengths = [max(length, wanted.get(slot, 0)) for slot, length in enumerate(self.lengths)]
        if sum(map(num_columns, lengths)) > self.max_columns:
            raise ModelError(
                f"the cache holds {self.max_columns} tokens in steps of {STEP} for each slot, which is not enough for "
                f"slots of {', '.join(str(length) for length in lengths if length)} tokens; release some, or make "
                "max_num_cached_tokens larger"
            )
        self.extents.arrange(self.lengths, lengths)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the forward's keys and values; return what its attention is given."""
        if self.forward is None:
            raise ModelError("the model was called with a target's cache outside a forward of the target")
        return self.forward.update(layer_idx, key_states, value_states)

    def clear(self, slot: int, start: int, stop: int) -> None:
        """Zero the slot's entries start .. stop - 1, in every layer."""
        stop, offset = min(stop, self.extents.sizes[slot]), self.extents.offsets[slot]
        if start < stop:
            for group in self.groups:
                group.keys[:, :, offset + start : offset + stop] = 0
                group.values[:, :, offset + start : offset + stop] = 0

    def free(self, slot: int) -> None:
        """Zero all that the slot holds and give its columns back."""
        self.clear(slot, 0, self.extents.sizes[slot])
        self.lengths[slot] = 0
        self.extents.free(slot)
        if self.recurrent is not None:
            self.recurrent.free(slot)

    def rewind(self, slot: int, length: int, stop: int = 0) -> None:
        """Keep `length` entries. ParameterError, with nothing lost, where a recurrent state of it is gone.

        stop: where what was written beside the slot's entries ends, if it goes further than they do.
        """
        if self.recurrent is not None:
            self.recurrent.rewind(slot, length)
        if self._clears:
            self.clear(slot, length, max(self.lengths[slot], stop))
        self.lengths[slot] = length

    def reachable(self, slot: int, length: int) -> int:
        """The most entries, `length` at most, that the slot can be rewound to or copied up to."""
        return length if self.recurrent is None else self.recurrent.reachable(slot, length)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Give `slot` the first `length` entries of `source`, and no others."""
        if self.recurrent is not None:
            self.recurrent.copy(source, slot, length)
        self.clear(slot, 0, self.lengths[slot])
        self.lengths[slot] = 0
        self.reserve({slot: length})
        self._copy_columns(self.extents.offsets[source], self.extents.offsets[slot], length)
        self.lengths[slot] = length

    def gather(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the slot's entries start + path[i] to start + i, in every layer."""
        num_there = next((place for place, entry in enumerate(path) if entry != place), len(path))
        path = path[num_there:]
        if not path:
            return
        start += self.extents.offsets[slot]
        for group in self.groups:
            index = torch.tensor(path, device=group.shape.device) + start
            to = start + num_there
            for buffer in (group.keys, group.values):
                buffer[:, :, to : to + len(path)] = buffer.index_select(2, index)

    def fill_random(self, length: int, generator: torch.Generator) -> None:
        """`length` random entries in every slot, the same for all slots (for self-checks)."""
        self.reserve(dict.fromkeys(range(self.num_slots), length))
        self.lengths = [length] * self.num_slots
        for group in self.groups:
            for buffer in (group.keys, group.values):
                size = (buffer.shape[0], buffer.shape[1], length, buffer.shape[3])
                entries = torch.randn(size, generator=generator).to(buffer)
                for offset in self.extents.offsets:
                    buffer[:, :, offset : offset + length] = entries
        if self.recurrent is not None:
            self.recurrent.fill_random(length, generator)

    def restart(self, slot: int, length: int) -> None:
        """As `fill_random` left the slot."""
        self.lengths[slot] = length
        if self.recurrent is not None:
            self.recurrent.restart(slot, length)

    def _buffers(self, shape: LayerShape, num_layers: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = (num_layers, shape.heads, columns)
        return (
            torch.zeros(*size, shape.key_dim, dtype=shape.dtype, device=shape.device),
            torch.zeros(*size, shape.value_dim, dtype=shape.dtype, device=shape.device),
        )

    def _grow(self, columns: int) -> None:
        for group in self.groups:
            keys, values = self._buffers(group.shape, len(group.layers), columns)
            keys[:, :, : self.capacity], values[:, :, : self.capacity] = group.keys, group.values
            group.keys, group.values = keys, values
        self.extents.capacity = columns

    def _move(self, slot: int, old: int, new: int) -> None:
        length = self.lengths[slot]
        self._copy_columns(old, new, length)
        # What is left behind belongs to nobody; the part that the new place covers was written.
        low, high = (max(old, new + length), old + length) if new < old else (old, min(old + length, new))
        for group in self.groups:
            group.keys[:, :, low:high] = 0
            group.values[:, :, low:high] = 0

    def _copy_columns(self, old: int, new: int, length: int) -> None:
        for group in self.groups:
            for buffer in (group.keys, group.values):
                entries = buffer[:, :, old : old + length]
                buffer[:, :, new : new + length] = entries.clone() if abs(new - old) < length else entries

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """A recurrent layer begins: what it calls next is computed by the running forward, from all inputs."""
        if self.recurrent_forward is None:
            raise ModelError("the model was called with a target's cache outside a forward of the target")
        self.recurrent_forward.enter(layer_idx, state_idx)
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Kept already, by the running forward."""
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Always false, and the getters return None: layers then go the way of several tokens (`functions.py`)."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0. Rows differ in length, so positions are given to the model; one that derives them from here
        instead is found by `selfcheck.py`."""
        return 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.max_columns

    def __len__(self) -> int:
        return self._num_layers

    @property
    def is_initialized(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return False
