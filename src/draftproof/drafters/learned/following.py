"""Drafters that the device drives: what they draft follows from tensors that it fills itself, with no number read by
the host in between.

Per step, for contexts whose newest token stands at `starts` and whose entries are cached up to `fed`: the context is
extended by what the target's pass committed, then the tokens are drafted. One file for each kind: a block
(`following_block.py`) and a chain (`following_chain.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import torch

from draftproof.config import MAX_SPECULATIVE_TOKENS
from draftproof.drafters.base import Drafter
from draftproof.drafters.learned.block_drafter import BlockDrafter, FactorisedDrafter
from draftproof.drafters.learned.chain_drafter import ChainDrafter
from draftproof.drafters.learned.lean_block import is_lean

Driven = TypeVar("Driven", BlockDrafter, ChainDrafter)


class Draw(Protocol):
    """Draws from logits with the requests' own parameters and noise."""

    def __call__(self, logits: torch.Tensor, first: int) -> torch.Tensor:
        """logits [requests, n, V] of the draft's tokens first, first + 1, …: ids [requests, n]."""
        ...


class FollowingDrafter(ABC, Generic[Driven]):
    """Drafts of `num_drafts` tokens for each of `num_requests` of the drafter's slots."""

    num_behind: ClassVar[int]
    """Entries of a context that the first call writes."""

    def __init__(self, drafter: Driven, *, num_requests: int, num_drafts: int) -> None:
        self.drafter: Driven = drafter
        self._num_drafts = num_drafts
        self._slots = torch.zeros(num_requests, dtype=torch.int64, device=drafter.ends.table.device)
        self._known: list[int] = []

    @property
    def buffers(self) -> tuple[int, ...]:
        """Where its caches lie: a captured graph is of no use once that changes."""
        cache = self.drafter.cache
        return cache.keys.data_ptr(), cache.values.data_ptr(), self.drafter.context.taps.rows.data_ptr()

    def use(self, slots: Sequence[int]) -> None:
        """The requests' slots from the next call on."""
        if list(slots) != self._known:
            self._slots.copy_(torch.tensor(slots))
            self._known = list(slots)

    @abstractmethod
    def __call__(
        self,
        newest: torch.Tensor,
        starts: torch.Tensor,
        fed: torch.Tensor,
        source: torch.Tensor,
        recent: torch.Tensor,
        draw: Draw,
    ) -> torch.Tensor:
        """newest, starts, fed, source [requests]: ids [requests, num_drafts]. source: as a following forward's.

        recent [requests, num_drafts + 1]: the tokens from position fed + 1 on, the newest among them.
        """


def follows(drafter: Drafter | None) -> bool:
    """Can the device drive it? Chain drafters; a block drafter of plain layers whose slots are independent, or look
    back by a Markov head alone, with drafts of full length."""
    if type(drafter) is ChainDrafter:
        return True
    if type(drafter) not in (BlockDrafter, FactorisedDrafter):
        return False
    assert isinstance(drafter, BlockDrafter)
    model = drafter.model
    looks_back = model.domino is not None or model.candidate_selector is not None
    return drafter.confidence_threshold == 0 and not looks_back and is_lean(model)


def most_drafts(drafter: Drafter) -> int:
    """How many tokens it drafts at the most, where the device drives it."""
    return drafter.layout.num_drafts if isinstance(drafter, BlockDrafter) else MAX_SPECULATIVE_TOKENS
