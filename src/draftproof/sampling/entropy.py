"""Surprise and entropy of a row, which several samplers look at.

Formula: -log p[i] = log(sum of weights) - score[i]; H = sum over p[i] > 0 of p[i] * -log p[i].
In: scores [K] <= 0 with maximum 0, their weights exp(score) [K]. Out: surprises [K] float64 in nats, entropy in nats.
Edge cases: a token of score -inf has infinite surprise and adds nothing. The sums are float64, in the tokens' order, so
they are the same whatever else is in the batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def surprises(scores: NDArray[Any], weights: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """([K] -log p in nats, entropy in nats)."""
    total = float(weights.sum(dtype=np.float64))
    surprise = math.log(total) - scores.astype(np.float64)
    alive = weights > 0
    mass = weights[alive].astype(np.float64)
    return surprise, float((mass * surprise[alive]).sum()) / total


def entropy_of(scores: NDArray[Any], weights: NDArray[Any]) -> float:
    """The entropy in nats, at least 0."""
    total = float(weights.sum(dtype=np.float64))
    # A weight of 0 may stand beside a score of -inf, whose product is NaN.
    alive = weights > 0
    inner = float((weights[alive].astype(np.float64) * scores[alive]).sum())
    return max(math.log(total) - inner / total, 0.0)
