"""Log-probabilities of emitted tokens: of the model's raw logits, before the sampler chain.

Accepted, recovered and bonus tokens alike take the logits row that their law came from. A
token's rank is 1 plus the number of tokens with a strictly larger logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Logprob:
    """logprob: natural logarithm. rank: 1 is the most probable; equal logits share a rank."""

    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one emitted token: itself and, in `top`, the most probable tokens of its row."""

    token_id: int
    own: Logprob
    top: dict[int, Logprob]


def token_logprobs(rows: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """rows: [n, V] raw logits. token_ids: [n] emitted. num_top: how many of the most probable beside them, -1 all."""
    rows = rows.float()
    normalised = rows.log_softmax(-1)
    results = []
    for row, logprobs, token_id in zip(rows, normalised, token_ids, strict=True):
        most = row.numel() if num_top < 0 else min(num_top, row.numel())
        top_ids = row.topk(most).indices.tolist() if most else []
        found = {
            which: Logprob(float(logprobs[which]), 1 + int((row > row[which]).sum())) for which in (token_id, *top_ids)
        }
        results.append(TokenLogprobs(token_id, found[token_id], {which: found[which] for which in top_ids}))
    return results
