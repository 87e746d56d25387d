"""A chain drafter (EAGLE-3, MTP) that the device drives: the committed tokens' entries are written anew from the
target's features, then the draft grows by an entry a token, with no number read by the host in between.

Entry i reads the feature of position i and token i + 1 (`chain_drafter.py`). A pass leaves up to num_drafts + 1 new
tokens behind `fed`, so as many entries are written from there on; those beyond the newest token are nobody's, and the
draft's own take their places. The forwards are the drafter's own, each over all the columns of its slots with a mask.
"""

from __future__ import annotations

from typing import Any

import torch

from draftproof.drafters.learned.cache import DraftCache
from draftproof.drafters.learned.chain_drafter import ChainDrafter, nn_embedding
from draftproof.drafters.learned.following import Draw, FollowingDrafter
from draftproof.targets.static.following import MOST_WIDTH, reals


class FollowingChain(FollowingDrafter[ChainDrafter]):
    """Drafts of `num_drafts` tokens for each of `num_requests` slots, over caches of `num_keys` columns."""

    num_behind = 1

    def __init__(self, drafter: ChainDrafter, *, num_requests: int, num_drafts: int, num_keys: int) -> None:
        super().__init__(drafter, num_requests=num_requests, num_drafts=num_drafts)
        device = drafter.ends.table.device
        self._width = num_drafts + 1
        # Of what is written beyond the longest context nothing is read; a copy's entries go to the last column.
        # PyTorch's attention is fast where rows of the mask are aligned.
        num_columns = -(-(num_keys + 2 * self._width) // 16) * 16
        drafter.cache.reserve(num_keys + 2 * MOST_WIDTH + 16)
        drafter.context.taps.reserve(num_keys + MOST_WIDTH)
        self._columns = torch.arange(num_columns, device=device)
        self._requests = torch.arange(num_requests, device=device)

    def __call__(
        self,
        newest: torch.Tensor,
        starts: torch.Tensor,
        fed: torch.Tensor,
        source: torch.Tensor,
        recent: torch.Tensor,
        draw: Draw,
    ) -> torch.Tensor:
        drafter, is_real = self.drafter, reals(source)
        taps = drafter.context.taps.read_at(self._slots, fed, self._width)
        features = drafter.model.features(taps.to(drafter.target.dtype))
        # Behind the newest token there is none: what stands there is an id that isn't looked at.
        hidden, out = self._forward(recent.long().clamp(min=0), fed, features, is_real)
        last = (starts - fed - 1).long()
        hidden, out = hidden[self._requests, last][:, None], out[self._requests, last][:, None]
        drafted: list[torch.Tensor] = []
        for index in range(self._num_drafts):
            if drafted:
                hidden, out = self._forward(drafted[-1], starts + index - 1, hidden, is_real)
            logits, vocab = drafter.ends.logits(out), drafter.ends.vocab
            drafted.append(draw(logits if vocab is None else vocab.expand(logits), index).long())
        return torch.cat(drafted, dim=1)

    def _forward(
        self, ids: torch.Tensor, starts: torch.Tensor, hidden: torch.Tensor, is_real: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries from starts [requests] on, of ids [requests, n] and hidden [requests, n, hidden size]."""
        positions = starts.long()[:, None] + self._columns[: ids.shape[1]]
        seen = self._columns <= positions[:, :, None]
        mask = torch.zeros(seen.shape, dtype=hidden.dtype, device=hidden.device)
        mask = mask.masked_fill_(~seen, torch.finfo(hidden.dtype).min)[:, None]
        columns = torch.where(is_real[:, None], positions, len(self._columns))
        keys = _Keys(self.drafter.cache, self._slots, columns, len(self._columns))
        found: tuple[torch.Tensor, torch.Tensor] = self.drafter.model(
            nn_embedding(ids, self.drafter.ends.table), hidden, positions, keys, mask
        )
        return found


class _Keys:
    """The drafter's cache in one forward: writes columns [requests, n] of slots [requests], reads the first so many."""

    def __init__(self, cache: DraftCache, slots: torch.Tensor, columns: torch.Tensor, num_read: int) -> None:
        self._cache, self._slots, self._columns, self._num_read = cache, slots, columns, num_read

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[requests, heads, n, dim] each; returns the slots' [requests, heads, columns, dim]."""
        keys, values = self._cache.keys[layer_idx], self._cache.values[layer_idx]
        return self._kept(keys, key_states), self._kept(values, value_states)

    def _kept(self, buffer: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        buffer[:, self._slots[:, None], self._columns] = states.transpose(0, 1).to(buffer.dtype)
        return buffer[:, self._slots, : self._num_read].transpose(0, 1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Always 0: positions are given to the layers."""
        return 0
