"""Martingale sums: how often the token fell into a set that was known beforehand, and how surprising it was.

Rule: for a predictable set A_t, S = sum of 1[x_t in A_t] - p_t(A_t), V = sum of p_t(A_t) (1 - p_t(A_t)). Sets:
{argmax p} (greedy tokens, temperature), {q > p} (attains the total variation of any bias towards the draft), {argmax
q} (argmax drafts), {the token before} (penalties), {EOS} (min_tokens), the tail {p < 1e-4} (coarse uniforms,
filters). And the surprise, min(-log p, 12) less its mean: a law that is too flat or too peaked. p-values:
`tails.martingale_p`. Rounding may move each token's mean by `shift` (the surprise's by shift times its standard
deviation: a logit error of e moves the mean of any function f by at most e sd(f), to first order).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.scores import MAX_SURPRISE, Floats, TokenScores
from draftproof.audit.statistics.tails import martingale_p, signed_z


class Sum(NamedTuple):
    """effect: mean of the steps. z: S over its standard deviation. p_value: two-sided. All [...]."""

    effect: Floats
    z: Floats
    p_value: Floats


def set_sum(is_in: NDArray[np.bool_], probability: Floats, shift: float = 0.0) -> Sum:
    """The sum of one set: is_in [..., N] whether the token is in it, probability [..., N] the set's under p."""
    inside = np.clip(probability, 0.0, 1.0)
    num_tokens = is_in.shape[-1]
    variances = inside * (1 - inside)
    total = (is_in - inside).sum(-1)
    variance = variances.sum(-1)
    third = (variances * (1 - 2 * inside)).sum(-1)
    p_value = martingale_p(total, variance, third, shift=num_tokens * shift + 1e-7 * num_tokens)
    return Sum(total / max(num_tokens, 1), signed_z(total, variance), p_value)


def surprise_sum(scores: TokenScores, shift: float = 0.0) -> Sum:
    """The sum of the surprises."""
    total, variance = scores.surprise.sum(-1), scores.surprise_variance.sum(-1)
    moved = shift * np.sqrt(scores.surprise_variance).sum(-1)
    p_value = martingale_p(total, variance, scores.surprise_third.sum(-1), step=MAX_SURPRISE, shift=moved)
    return Sum(total / max(len(scores), 1), signed_z(total, variance), p_value)
