"""What the engine asks of a target: append tokens to a slot, get their laws' logits, and take tokens back.

A target holds `num_slots` independent sequences. Each slot has a length: the number of tokens whose keys and
values are cached. `score` and `prefill` append, `rewind` shortens, `copy` shares, `release` empties. Of the logits
that `score` returns, token i's row belongs to the token after it, given everything that it attends to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Tokens to append to one slot and to score.

    slot: which cache slot.
    token_ids: the tokens to append after the slot's cached entries: the last committed token, then the draft's nodes.
    parents: None for a chain. Else, for each token, its parent's index within `token_ids`, -1 for the first; a
        parent stands before its children. A node attends to the cache and to its ancestors, and its position is
        the slot's length plus its depth.
    num_rows: how many of the tokens, the last ones, are scored; the others are appended alone, as those of a context
        are. None scores all.
    """

    slot: int
    token_ids: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    num_rows: int | None = None

    @property
    def first_row(self) -> int:
        """Index of the first token that is scored."""
        return 0 if self.num_rows is None else len(self.token_ids) - self.num_rows


class Target(Protocol):
    """A causal language model with slots that can be rewound."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    num_slots: int
    device: torch.device
    dtype: torch.dtype

    @property
    def supports_trees(self) -> bool:
        """Whether `parents` may branch."""
        ...

    def num_branches(self, slot: int, num_entries: int) -> int | None:
        """How many branches of up to `num_entries` tokens, the first one theirs together, a tree that goes on from the
        slot may have and be scored cheaply; None where that doesn't depend on it."""
        ...

    @property
    def max_num_cached_tokens(self) -> int:
        """How many columns all slots together may take: enough for one slot of `max_model_len`."""
        ...

    def score(self, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
        """Append every request's tokens and return one [num_rows, vocab_size] logits tensor per request.

        Chunks of contexts and drafts of any lengths share the call.
        """
        ...

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append tokens without computing logits, in as many forwards as it takes."""
        ...

    def length(self, slot: int) -> int:
        """Cached entries of the slot."""
        ...

    def room(self, slot: int, num_more: int = 0) -> int:
        """How many tokens one `score` call may append to the slot, once `num_more` tokens more are cached.

        0 when the model's length is reached.
        """
        ...

    def num_columns(self, length: int) -> int:
        """The room that a slot of `length` entries takes in the cache: `length` or more."""
        ...

    def reachable(self, slot: int, length: int) -> int:
        """The most entries, `length` at most, that the slot can be rewound to or copied up to.

        Less than `length` where a recurrent state can't be had after any number of tokens.
        """
        ...

    def copy(self, source: int, slot: int, length: int) -> None:
        """Give `slot` the first `length` entries of the slot `source` in place of its own; `source` keeps them.

        Raises ParameterError for a length that isn't reachable.
        """
        ...

    def rewind(self, slot: int, length: int, path: Sequence[int] = ()) -> None:
        """Keep `length` entries in all. Raises ParameterError for a length that isn't reachable; those since the last
        rewind are, and 0.

        `path` (after a tree) holds cache offsets, counted from the start of the last score call's tokens: a path
        from the first token down the tree. Its entries are moved in place to the start of those tokens first.
        """
        ...

    def release(self, slot: int) -> None:
        """Empty the slot."""
        ...

    def num_releases(self, slot: int) -> int:
        """How often the slot has been emptied: entries that were left in it are still there if that hasn't changed."""
        ...


class HiddenStates(Protocol):
    """Hidden states that a target keeps for cached positions; `targets/taps.py` says which and how."""

    tap_ids: tuple[int, ...]
    lengths: list[int]
    rows: torch.Tensor
    """[slots, capacity, taps * hidden size]."""

    def read(self, slot: int, start: int, stop: int) -> torch.Tensor:
        """[stop - start, taps * hidden size], the taps side by side."""
        ...

    def read_at(self, slots: torch.Tensor, starts: torch.Tensor, num_positions: int) -> torch.Tensor:
        """[requests, num_positions, taps * hidden size] from starts [requests] on, whatever is there; by the device."""
        ...

    def reserve(self, capacity: int) -> None:
        """Room for so many positions in every slot."""
        ...

    def check_open(self) -> None:
        """Raises ModelError if they are no longer kept."""
        ...


class TappedTarget(Target, Protocol):
    """A target that learned drafters can be run on: a transformers `model` whose hidden states can be kept."""

    model: Any

    def request_taps(self, tap_ids: Sequence[int]) -> HiddenStates:
        """Keep these hidden states for every position that is appended from now on."""
        ...
