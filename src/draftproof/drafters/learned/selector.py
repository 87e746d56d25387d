"""DFlash 2's candidate selector: a walk over the best few tokens of each slot that makes the block consistent.

Rule: among the `top_k` tokens of slot t with the highest logits, the score of candidate v after token u is
    logit[v] + sum over r of predecessor[u, r] · (projection · hidden_t)[r] · successor[v, r].
Source: z-lab/dflash 0.1.0, CandidateSelector.
"""

from __future__ import annotations

import torch
from torch import nn

from draftproof.drafters.learned.modules import Linear, Table


class CandidateSelector(nn.Module):
    """Scores a slot's candidates after each predecessor."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.predecessor_codebook = Table(vocab_size, rank)
        self.successor_codebook = Table(vocab_size, rank)
        self.hidden_projection = Linear(hidden_size, rank)

    def candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., V] to the candidates' logits and ids [..., top_k], ids ascending."""
        ids = logits.topk(self.top_k, dim=-1).indices.sort(dim=-1).values
        return logits.gather(-1, ids), ids

    def scores(
        self, logits: torch.Tensor, ids: torch.Tensor, hidden: torch.Tensor, previous_ids: torch.Tensor
    ) -> torch.Tensor:
        """logits and ids [..., top_k], hidden [..., hidden], previous_ids [...] to scores [..., top_k]."""
        query = self.predecessor_codebook(previous_ids) * self.hidden_projection(hidden)
        pairs: torch.Tensor = query.unsqueeze(-2) * self.successor_codebook(ids)
        return logits + pairs.sum(-1)
