"""Hidden states of chosen layers, kept for every cached position: what learned drafters read of the target.

Tap k is what transformers calls `hidden_states[k]`: 0 is the embedding, k the output of decoder layer k - 1, and
num_hidden_layers the output of the final norm. Packagings count in several ways; `drafters/learned/layout.py` turns
each into this one.

The store is filled by every forward of the target, prefill chunks included, and follows the cache: what a rewind
drops there is dropped here, and a tree's path is gathered alike. A position whose entry came without a forward (a
prefix that was copied from another slot) is a gap: `length` ends before it, and the reader has it computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from draftproof.errors import ModelError, ParameterError, UnsupportedModelError

GROWTH_STEP = 256


class TapStore:
    """`read(slot, start, stop)` gives [stop - start, num_taps * hidden_size], the taps side by side in their order."""

    def __init__(self, model: Any, tap_ids: Sequence[int], num_slots: int) -> None:
        """model: a transformers causal LM. tap_ids: distinct, 0 to its number of layers.

        Raises ParameterError for other ids, UnsupportedModelError where the layers can't be found.
        """
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        layers, norm = getattr(decoder, "layers", None), getattr(decoder, "norm", None)
        if layers is None or norm is None:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no decoder with `layers` and `norm`, so its hidden states can't be read; "
                "use a drafter that needs none (ngram, suffix, draft_model)"
            )
        if not tap_ids or any(not 0 <= tap <= len(layers) for tap in tap_ids) or len(set(tap_ids)) != len(tap_ids):
            raise ParameterError("tap_ids", list(tap_ids), f"distinct, 0 to the target's {len(layers)} layers")
        self.tap_ids = tuple(tap_ids)
        self.hidden_size = int(model.config.get_text_config(decoder=True).hidden_size)
        self.lengths = [0] * num_slots
        self._num_slots, self._dtype, self._device = num_slots, model.dtype, model.device
        self.rows = torch.zeros(num_slots, 0, self.width, dtype=self._dtype, device=self._device)
        self._seen: dict[int, torch.Tensor] = {}
        self._is_open = True
        self._hooks = [self._hook(tap, _module_of(tap, model, layers, norm)) for tap in self.tap_ids]

    @property
    def width(self) -> int:
        """Numbers per position."""
        return len(self.tap_ids) * self.hidden_size

    def close(self) -> None:
        """Take the hooks off the model: another store is kept from now on."""
        self._is_open = False
        for hook in self._hooks:
            hook.remove()

    def check_open(self) -> None:
        """Raises ModelError once another drafter's taps have taken this store's place."""
        if not self._is_open:
            raise ModelError(
                f"the hidden states {list(self.tap_ids)} that this drafter reads are no longer kept: another drafter, "
                "which reads others, was loaded for the same target; load the target once for each of them"
            )

    def _hook(self, tap: int, module: nn.Module) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            self._seen[tap] = output[0] if isinstance(output, tuple) else output

        return module.register_forward_hook(keep)

    def see(self, hidden_states: Mapping[int, torch.Tensor]) -> None:
        """What a forward that doesn't call the model's own modules found: by tap, [tokens, hidden size]."""
        self._seen.update(hidden_states)

    def see_one(self, tap: int, hidden: torch.Tensor) -> None:
        """As `see`, of one that is written to afterwards; those that nobody asked for are passed over."""
        if tap in self.tap_ids:
            self._seen[tap] = hidden.clone()

    def seen(self) -> dict[int, torch.Tensor]:
        """What the last forward found, by tap; `see` puts it back when that forward is replayed."""
        return dict(self._seen)

    def record(
        self, slots: Sequence[int], starts: Sequence[int], num_tokens: Sequence[int], firsts: Sequence[int]
    ) -> None:
        """Take in the forward that has just run: it appended num_tokens[i] tokens to slots[i] at starts[i].

        firsts: where those tokens begin among all the tokens of the forward, its rows one after another.
        """
        seen = [self._seen[tap] for tap in self.tap_ids]
        self.reserve(max(start + count for start, count in zip(starts, num_tokens, strict=True)))
        for slot, start, count, first in zip(slots, starts, num_tokens, firsts, strict=True):
            if start > self.lengths[slot]:
                continue
            for index, hidden in enumerate(seen):
                columns = slice(index * self.hidden_size, (index + 1) * self.hidden_size)
                self.rows[slot, start : start + count, columns] = hidden.flatten(0, -2)[first : first + count]
            self.lengths[slot] = start + count

    def record_at(
        self,
        slots: torch.Tensor,
        starts: torch.Tensor,
        num_tokens: int,
        seen: Mapping[int, torch.Tensor],
        source: torch.Tensor,
    ) -> None:
        """As `record`, by the device alone: num_tokens for each of slots [requests] from starts [requests] on.

        seen: by tap, [tokens, hidden size], the requests' tokens first. source [requests]: whose hidden states are
        taken for each; where two have one slot, they are the same ones. There is room (`reserve`); the lengths are
        the caller's to set.
        """
        hidden = torch.cat([seen[tap].flatten(0, -2) for tap in self.tap_ids], dim=-1)
        positions = starts[:, None] + torch.arange(num_tokens, device=starts.device)
        self.rows[slots[:, None], positions] = hidden[: positions.numel()].view(*positions.shape, -1)[source]

    def read_at(self, slots: torch.Tensor, starts: torch.Tensor, num_positions: int) -> torch.Tensor:
        """[requests, num_positions, width] from starts [requests] on, whatever is there."""
        positions = starts[:, None] + torch.arange(num_positions, device=starts.device)
        return self.rows[slots[:, None], positions]

    def read(self, slot: int, start: int, stop: int) -> torch.Tensor:
        """[stop - start, width] the positions' taps. Raises ParameterError for positions that aren't there."""
        if not 0 <= start <= stop <= self.lengths[slot]:
            raise ParameterError("start, stop", (start, stop), f"within the {self.lengths[slot]} recorded positions")
        return self.rows[slot, start:stop]

    def rewind(self, slot: int, length: int, start: int, path: Sequence[int]) -> None:
        """Keep `length` positions; the entries start + path[i] are moved to start + i first."""
        if len(path) and start + max(path) < self.lengths[slot]:
            index = torch.tensor(path, device=self._device) + start
            self.rows[slot, start : start + len(path)] = self.rows[slot].index_select(0, index)
        self.lengths[slot] = min(self.lengths[slot], length)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Give `slot` the first `length` positions of `source`, as far as they are there."""
        length = min(length, self.lengths[source])
        self.rows[slot, :length] = self.rows[source, :length]
        self.lengths[slot] = length

    def reserve(self, capacity: int) -> None:
        """Room for so many positions in every slot."""
        current = self.rows.shape[1]
        if capacity <= current:
            return
        grown = max(capacity, 2 * current, GROWTH_STEP)
        rows = torch.zeros(self._num_slots, grown, self.width, dtype=self._dtype, device=self._device)
        rows[:, :current] = self.rows
        self.rows = rows


def _module_of(tap: int, model: Any, layers: Any, norm: nn.Module) -> nn.Module:
    if tap == len(layers):
        return norm
    module: nn.Module = model.get_input_embeddings() if tap == 0 else layers[tap - 1]
    return module
