"""A drafter's reduced vocabulary: which of the target's tokens its logits are for."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.layout import OTHER_TARGET
from draftproof.errors import ModelError


class VocabMap:
    """token_ids [D]: the target's id of each of the drafter's, distinct."""

    def __init__(self, token_ids: torch.Tensor, vocab_size: int, where: str) -> None:
        if token_ids.ndim != 1 or len(token_ids) == 0 or len(set(token_ids.tolist())) != len(token_ids):
            raise ModelError(
                f"{where}: d2t of shape {tuple(token_ids.shape)} must map every draft token to another one"
            )
        if int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size:
            wrong = int(token_ids.max()) if int(token_ids.min()) >= 0 else int(token_ids.min())
            raise ModelError(
                f"{where}: d2t maps a draft token to {wrong}, and the target's ids are 0 to {vocab_size - 1}; "
                f"{OTHER_TARGET}"
            )
        self.token_ids, self.vocab_size = token_ids, vocab_size
        self._there: torch.Tensor | None = None
        self.ascending_ids: NDArray[np.int64] | None = None
        """[D] the token ids on the host, where they ascend; else None."""
        ids = token_ids.cpu().numpy().astype(np.int64)
        if bool((np.diff(ids) > 0).all()):
            self.ascending_ids = ids

    @classmethod
    def read(cls, checkpoint: Checkpoint, draft_vocab_size: int, vocab_size: int) -> VocabMap:
        """From `d2t`, offsets: target id = draft id + d2t[draft id]. `t2d`, where there is one, must agree."""
        where = str(checkpoint.folder)
        if "d2t" not in checkpoint:
            raise ModelError(
                f"{where}: the drafter has {draft_vocab_size} tokens, the target {vocab_size}, and the tensor d2t that "
                "maps them is missing; get the checkpoint anew"
            )
        offsets = checkpoint.tensor("d2t").long()
        if tuple(offsets.shape) != (draft_vocab_size,):
            raise ModelError(f"{where}: the tensor d2t has shape {tuple(offsets.shape)}, not ({draft_vocab_size},)")
        found = cls(torch.arange(draft_vocab_size) + offsets, vocab_size, where)
        if "t2d" in checkpoint:
            marked = checkpoint.tensor("t2d").bool()
            shown = tuple(marked.shape)
            if shown[0] < vocab_size or set(marked.nonzero().flatten().tolist()) != set(found.token_ids.tolist()):
                raise ModelError(f"{where}: t2d {shown} and d2t mark different tokens; get the checkpoint anew")
        return found

    def expand(self, logits: torch.Tensor) -> torch.Tensor:
        """[..., D] to [..., vocab_size]; tokens that the drafter doesn't have get -inf."""
        out = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        if self._there is None or self._there.device != logits.device:
            self._there = self.token_ids.to(logits.device)
        return out.index_copy_(-1, self._there, logits)
