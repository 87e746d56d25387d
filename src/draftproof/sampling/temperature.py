"""Temperature: divide the distance to the largest logit.

Formula: score[i] = (z[i] - max z) / T; weight[i] = exp(score[i]), so the largest weight is exactly 1.
In: logits [K], their maximum, T > 0. Out: scores [K] <= 0, weights [K] in [0, 1].
Edge cases: T = 0 never comes here (the chain returns the maximum). Subtracting first keeps every T
exact: 1e-40 leaves the maximum and its ties, 1e30 a nearly uniform law (T32). A T that the logits'
type can't hold, or holds with fewer bits, is divided by in float64.
Weights are the same bits wherever in an array a score stands (tests/sampling/test_rows.py).
Source: Ackley, Hinton, Sejnowski 1985; deviation from most engines: they divide before subtracting.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_FLOAT32_SAFE: Final = 1e30


def scores_of(logits: NDArray[Any], max_logit: Any, temperature: float) -> NDArray[Any]:
    """[K] scores, at most 0, as a new array of the logits' type."""
    scores: NDArray[Any] = np.subtract(logits, max_logit)
    if temperature == 1.0:
        return scores
    if logits.dtype == np.float32 and not 1 / _FLOAT32_SAFE <= temperature <= _FLOAT32_SAFE:
        scores = (scores.astype(np.float64) / temperature).astype(np.float32)
        return scores
    np.divide(scores, temperature, out=scores)
    return scores


def weights_of(scores: NDArray[Any]) -> NDArray[Any]:
    """exp(scores) [K], as a new array of the same type."""
    # numpy's and not torch's, which wakes a thread pool for each row and stalls where cores are shared.
    weights: NDArray[Any] = np.exp(scores)
    return weights
