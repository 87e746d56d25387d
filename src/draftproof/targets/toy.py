"""A target whose law is known: logits come from a table, so that an engine's output can be compared with it.

`TableTarget` implements the `Target` interface over any `verify.tables.Table`: row i of `score` is the logarithm of
the table's probabilities after the context that ends with token i. Slots hold token ids in place of keys and values,
so that a wrong rewind shows as a wrong context, and hence as a wrong law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from draftproof.core import Law
from draftproof.errors import ModelError, ParameterError
from draftproof.targets.base import ScoreRequest
from draftproof.verify.tables import Context, Table


@final
class TableTarget:
    """A table of laws behind the interface of a language model.

    table: the law after every context. num_slots, max_model_len: as in `Target`. dtype: of the logits, whose
    rounding is the only difference between the table's law and the one that a sampler chain gets to see.
    """

    def __init__(
        self,
        table: Table,
        *,
        num_slots: int = 1,
        max_model_len: int = 4096,
        eos_token_ids: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        max_num_cached_tokens: int | None = None,
    ) -> None:
        if num_slots < 1:
            raise ParameterError("num_slots", num_slots, "1 or more")
        if max_model_len < 1:
            raise ParameterError("max_model_len", max_model_len, "1 or more")
        self.vocab_size = table.vocab_size
        self.max_model_len = max_model_len
        self.eos_token_ids = tuple(eos_token_ids)
        self.num_slots = num_slots
        self.max_num_cached_tokens = (
            num_slots * max_model_len if max_num_cached_tokens is None else max_num_cached_tokens
        )
        if self.max_num_cached_tokens < max_model_len:
            raise ParameterError(
                "max_num_cached_tokens", max_num_cached_tokens, f"max_model_len={max_model_len} or more"
            )
        self.device = torch.device("cpu")
        self.dtype = dtype
        self._table = table
        self._entries: list[list[int]] = [[] for _ in range(num_slots)]
        # Where the last score call's tokens begin, in each slot; and whether they are a tree, not yet cut to a path.
        self._last_start = [0] * num_slots
        self._num_releases = [0] * num_slots
        self._holds_tree = [False] * num_slots

    def law(self, context: Context) -> Law:
        """The table's law after `context`."""
        return self._table.law(context)

    def score(self, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
        """Append every request's tokens and return one [num_rows, vocab_size] logits tensor per request."""
        return [self._score(request) for request in requests]

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens without computing logits."""
        self._append(slot, token_ids)

    def length(self, slot: int) -> int:
        """Cached entries of the slot."""
        return len(self._slot(slot))

    def room(self, slot: int, num_more: int = 0) -> int:
        """How many tokens may be appended to the slot, once `num_more` more are there."""
        return self.max_model_len - len(self._slot(slot)) - num_more

    def num_columns(self, length: int) -> int:
        """An entry takes a column."""
        return length

    def num_branches(self, slot: int, num_entries: int) -> None:
        return None

    @property
    def supports_trees(self) -> bool:
        """A node's law is that of its path."""
        return True

    def reachable(self, slot: int, length: int) -> int:
        """Any number of entries."""
        return min(length, len(self._slot(slot)))

    def copy(self, source: int, slot: int, length: int) -> None:
        """Give `slot` the first `length` entries of `source`."""
        if not 0 <= length <= len(self._slot(source)) or source == slot:
            raise ParameterError("length", length, f"0 to {len(self._slot(source))}, what another slot holds")
        self._check_room(slot, length)
        self._slot(slot)[:] = self._slot(source)[:length]
        self._last_start[slot], self._holds_tree[slot] = length, False

    def rewind(self, slot: int, length: int, path: Sequence[int] = ()) -> None:
        """Keep `length` entries; `path`: offsets of the last score call's tokens that are moved to its start first."""
        entries, start = self._slot(slot), self._last_start[slot]
        if path:
            moved = [entries[start + offset] for offset in path]
            entries[start : start + len(moved)] = moved
        if not 0 <= length <= len(entries):
            raise ParameterError("length", length, f"0 to {len(entries)}, what slot {slot} holds")
        if self._holds_tree[slot] and length > start + max(len(path), 1):
            raise ParameterError(
                "length", length, f"at most {start + max(len(path), 1)} after a tree", "give the path that was accepted"
            )
        del entries[length:]
        self._holds_tree[slot] = False

    def release(self, slot: int) -> None:
        """Empty the slot."""
        self._slot(slot).clear()
        self._num_releases[slot] += 1
        self._last_start[slot], self._holds_tree[slot] = 0, False

    def num_releases(self, slot: int) -> int:
        """How often the slot has been emptied."""
        return self._num_releases[slot]

    def _score(self, request: ScoreRequest) -> torch.Tensor:
        parents = range(-1, len(request.token_ids) - 1) if request.parents is None else request.parents
        if len(parents) != len(request.token_ids) or any(parent >= node for node, parent in enumerate(parents)):
            raise ParameterError("parents", request.parents, "for each token, the index of an earlier one or -1")
        context = tuple(self._slot(request.slot))
        self._append(request.slot, request.token_ids)
        self._last_start[request.slot] = len(context)
        self._holds_tree[request.slot] = any(parent != node - 1 for node, parent in enumerate(parents))
        paths: list[Context] = []
        for token_id, parent in zip(request.token_ids, parents, strict=True):
            paths.append((*(context if parent < 0 else paths[parent]), token_id))
        probs = [[float(prob) for prob in self._table.probs(path)] for path in paths[request.first_row :]]
        return torch.tensor(probs, dtype=torch.float64).reshape(-1, self.vocab_size).log().to(self.dtype)

    def _append(self, slot: int, token_ids: Sequence[int]) -> None:
        entries = self._slot(slot)
        if self._holds_tree[slot]:
            raise ParameterError("slot", slot, "rewound to one path after a tree was scored", "call rewind first")
        if len(entries) + len(token_ids) > self.max_model_len:
            raise ParameterError("token_ids", f"{len(token_ids)} tokens", f"at most room({slot}) = {self.room(slot)}")
        outside = [token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size]
        if outside:
            raise ParameterError("token_ids", outside, f"ids from 0 to {self.vocab_size - 1}")
        self._check_room(slot, len(entries) + len(token_ids))
        entries.extend(token_ids)

    def _check_room(self, slot: int, length: int) -> None:
        used = sum(len(entries) for index, entries in enumerate(self._entries) if index != slot)
        if used + length > self.max_num_cached_tokens:
            raise ModelError(
                f"the cache holds {self.max_num_cached_tokens} tokens, not {used + length}; release or rewind slots"
            )

    def _slot(self, slot: int) -> list[int]:
        if not 0 <= slot < self.num_slots:
            raise ParameterError("slot", slot, f"0 to {self.num_slots - 1}")
        return self._entries[slot]
