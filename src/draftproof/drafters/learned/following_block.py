"""A block drafter that the device drives: its context is extended and its block drafted as the target's verdicts come,
with no number read by the host in between.

Per step, for contexts whose newest token stands at `starts` and whose keys are cached up to `fed`: the features of
the positions from `fed` on, as many as a pass can commit, are made keys of; those at `starts` and beyond are of
rejected tokens, and the block writes its own keys there or doesn't see them. The tokens are then drawn as `drawing.py`
says for shared noise: the race of the drafter's logits over the target's own field, all slots at once or, where a
Markov head looks back, one after another. Tokens that a reduced vocabulary hasn't got take no part in it.
"""

from __future__ import annotations

import torch

from draftproof.drafters.learned.block_drafter import BlockDrafter
from draftproof.drafters.learned.following import Draw, FollowingDrafter
from draftproof.drafters.learned.lean_block import LeanBlock
from draftproof.targets.static.following import MOST_WIDTH, reals


class FollowingBlock(FollowingDrafter[BlockDrafter]):
    """Drafts of `num_drafts` tokens for each of `num_requests` slots, over caches of `num_keys` columns."""

    num_behind = 0

    def __init__(self, drafter: BlockDrafter, *, num_requests: int, num_drafts: int, num_keys: int) -> None:
        super().__init__(drafter, num_requests=num_requests, num_drafts=num_drafts)
        layout, device = drafter.layout, drafter.ends.table.device
        self._ids = torch.full((num_requests, layout.block_size), layout.mask_token_id, device=device)
        self._fed = torch.arange(num_drafts + 1, device=device)
        # What is written may end beyond the longest context by a pass, or by a block.
        drafter.cache.reserve(num_keys + max(MOST_WIDTH, layout.block_size))
        drafter.context.taps.reserve(num_keys + MOST_WIDTH)
        self._block = LeanBlock(
            drafter.model, drafter.cache, num_requests=num_requests, num_keys=num_keys + layout.block_size
        )

    def __call__(
        self,
        newest: torch.Tensor,
        starts: torch.Tensor,
        fed: torch.Tensor,
        source: torch.Tensor,
        recent: torch.Tensor,
        draw: Draw,
    ) -> torch.Tensor:
        """As every such drafter's; a block doesn't look at recent."""
        drafter, model, vocab = self.drafter, self.drafter.model, self.drafter.ends.vocab
        is_real = reals(source)
        self._extend(fed, is_real)
        self._ids[:, 0] = newest
        first = drafter.layout.first_slot
        hidden = self._block.hidden(self._slots, starts, self._ids, drafter.ends.table, is_real)
        hidden = hidden[:, first : first + self._num_drafts]
        logits = model.scaled(drafter.ends.logits(hidden))
        markov = model.markov_head
        if markov is None:
            return draw(logits if vocab is None else vocab.expand(logits), 0)
        previous, drafted = newest.long(), []
        state = markov.start(markov.embed(previous))
        for index in range(self._num_drafts):
            bias, state = markov.step(markov.embed(previous), hidden[:, index], state)
            biased = logits[:, index] + bias
            previous = draw((biased if vocab is None else vocab.expand(biased))[:, None], index)[:, 0].long()
            drafted.append(previous)
        return torch.stack(drafted, dim=1)

    def _extend(self, fed: torch.Tensor, is_real: torch.Tensor) -> None:
        taps = self.drafter.context.taps.read_at(self._slots, fed, len(self._fed))
        self._block.extend(self._slots, fed[:, None] + self._fed, taps.to(self.drafter.target.dtype), is_real)
