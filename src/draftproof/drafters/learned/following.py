"""A block drafter that the device drives: its context is extended and its block drafted as the target's verdicts come,
with no number read by the host in between.

Per step, for contexts whose newest token stands at `starts` and whose keys are cached up to `fed`: the features of
the positions from `fed` on, as many as a pass can commit, are made keys of; those at `starts` and beyond are of
rejected tokens, and the block writes its own keys there or masks them. The tokens are then drawn as `drawing.py` says
for shared noise: the race of the drafter's logits over the target's own field, all slots at once or, where a Markov
head looks back, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from draftproof.drafters.base import Drafter
from draftproof.drafters.learned.block_drafter import BlockDrafter, FactorisedDrafter
from draftproof.drafters.learned.block_model import block_mask
from draftproof.drafters.learned.modules import Attend


class Draw(Protocol):
    """Draws from logits with the requests' own parameters and noise."""

    def __call__(self, logits: torch.Tensor, first: int) -> torch.Tensor:
        """logits [requests, n, V] of the draft's tokens first, first + 1, …: ids [requests, n]."""
        ...


def follows(drafter: Drafter | None) -> bool:
    """Can the device drive it? A block drafter whose slots are independent, or look back by a Markov head alone, with
    the target's whole vocabulary and drafts of full length."""
    if type(drafter) not in (BlockDrafter, FactorisedDrafter):
        return False
    assert isinstance(drafter, BlockDrafter)
    model = drafter.model
    looks_back = model.domino is not None or model.candidate_selector is not None
    return drafter.ends.vocab is None and drafter.confidence_threshold == 0 and not looks_back


class FollowingBlock:
    """Drafts of `num_drafts` tokens for each of `num_requests` slots, over caches of `num_keys` columns."""

    def __init__(self, drafter: BlockDrafter, *, num_requests: int, num_drafts: int, num_keys: int) -> None:
        self.drafter, self._num_drafts, self._num_keys = drafter, num_drafts, num_keys
        layout, device = drafter.layout, drafter.ends.table.device
        self._slots = torch.zeros(num_requests, dtype=torch.int64, device=device)
        self._known: list[int] = []
        self._ids = torch.full((num_requests, layout.block_size), layout.mask_token_id, device=device)
        self._block = torch.arange(layout.block_size, device=device)
        self._fed = torch.arange(num_drafts + 1, device=device)
        # What is written may end beyond the longest context by a pass, or by a block.
        drafter.cache.reserve(num_keys + max(num_drafts + 1, layout.block_size))
        drafter.context.taps.reserve(num_keys + num_drafts + 1)

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

    def __call__(self, newest: torch.Tensor, starts: torch.Tensor, fed: torch.Tensor, draw: Draw) -> torch.Tensor:
        """newest, starts, fed [requests]: ids [requests, num_drafts]."""
        self._extend(fed)
        layout, model = self.drafter.layout, self.drafter.model
        hidden = self._hidden(newest, starts)[:, layout.first_slot : layout.first_slot + self._num_drafts]
        logits = model.scaled(self.drafter.ends.logits(hidden))
        markov = model.markov_head
        if markov is None:
            return draw(logits, 0)
        previous, drafted = newest.long(), []
        state = markov.start(markov.embed(previous))
        for index in range(self._num_drafts):
            bias, state = markov.step(markov.embed(previous), hidden[:, index], state)
            previous = draw((logits[:, index] + bias)[:, None], index)[:, 0].long()
            drafted.append(previous)
        return torch.stack(drafted, dim=1)

    def _extend(self, fed: torch.Tensor) -> None:
        drafter, model = self.drafter, self.drafter.model
        taps = drafter.context.taps.read_at(self._slots, fed, len(self._fed))
        features = model.context(taps.to(drafter.target.dtype))
        positions = fed[:, None] + self._fed
        rotation = model.rotation(features, positions)
        drafter.cache.prepare_at(self._slots, positions, self._num_keys)
        for index, layer in enumerate(model.layers):
            drafter.cache.update(*layer.self_attn.keys_values(features, rotation), index)  # type: ignore[operator, union-attr]

    def _hidden(self, newest: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        drafter, model = self.drafter, self.drafter.model
        self._ids[:, 0] = newest
        block = model.embed(drafter.ends.table, self._ids)
        positions = starts[:, None] + self._block
        num_keys = self._num_keys + len(self._block)
        drafter.cache.prepare_at(self._slots, positions, num_keys)
        masks: dict[tuple[int | None, bool], torch.Tensor] = {}
        attends: list[Attend] = []
        for index, kind in enumerate(zip(model.backbone.windows, drafter.layout.causal, strict=True)):
            if kind not in masks:
                masks[kind] = block_mask(starts, len(self._block), num_keys, *kind, block.dtype)
            attends.append(drafter.attend(index, masks[kind]))
        hidden: torch.Tensor = model(block, model.rotation(block, positions), attends)
        return hidden
