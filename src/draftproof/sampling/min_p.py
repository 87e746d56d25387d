"""Min-p: drop tokens whose probability is below a fraction of the largest one.

Formula: keep i iff p[i] >= min_p * max p, that is score[i] >= ln(min_p).
In: scores [K] <= 0 with maximum 0, min_p in (0, 1]. Out: kept [K] bool.
Ties at the edge are kept; the largest is always kept; min_p = 1 keeps the maxima alone.
The comparison is exact: ln(min_p) is rounded up to the scores' type, so a score passes iff it is at
least the float64 logarithm.
Source: Nguyen et al., arXiv 2407.01082, section 3; vLLM, transformers, llama.cpp and mlx-lm agree.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def keeps(scores: NDArray[Any], min_p: float) -> NDArray[np.bool_]:
    """[K] which of `scores` min-p keeps."""
    threshold = math.log(min_p)
    rounded = scores.dtype.type(threshold)
    if float(rounded) < threshold:
        rounded = np.nextafter(rounded, scores.dtype.type(np.inf))
    kept: NDArray[np.bool_] = scores >= rounded
    return kept
