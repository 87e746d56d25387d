"""Top-n-sigma: keep the logits within n standard deviations of the largest.

Formula: keep i iff z[i] >= max z - n * s, s = sqrt(mean of (z - mean z)^2) over the logits that are not -inf.
In: logits [K], n > 0. Out: kept [K] bool.
Edge cases: the largest is always kept; a row of equal logits has s = 0 and is kept whole; one token left is kept. Mean
and deviation are float64. Dividing all logits by a temperature divides both sides, so the kept set is the same before
and after it.
Deviation: what is dropped is gone for the filters after it, as with every filter here; llama.cpp keeps it at -inf, over
which its typical sampler computes NaN.
Source: Tang et al., arXiv 2411.07641, section 3; llama.cpp's top-n-sigma sampler.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def keeps(logits: NDArray[Any], num_sigmas: float) -> NDArray[np.bool_]:
    """[K] which of `logits` are within `num_sigmas` deviations of the largest."""
    alive = logits[logits != -np.inf].astype(np.float64)
    centred = alive - alive.mean()
    deviation = math.sqrt(float((centred * centred).mean()))
    threshold = np.float64(float(alive.max()) - num_sigmas * deviation)
    kept: NDArray[np.bool_] = logits >= threshold
    return kept
