"""Epsilon and eta cutoff: drop tokens whose probability is below a threshold, which eta lowers as the entropy grows.

Formula: keep i iff p[i] >= t or p[i] is the largest; epsilon: t = epsilon; eta: t = min(e, sqrt(e) * exp(-H)).
In: scores [K] <= 0 with maximum 0, their weights [K], the cutoff in (0, 1). Out: kept [K] bool.
Ties with the largest are kept with it. Compared are weights with t times their sum, in float64.
Source: Hewitt et al., arXiv 2210.15191, sections 3 and 4; transformers' EpsilonLogitsWarper and EtaLogitsWarper.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.entropy import entropy_of


def epsilon_keeps(weights: NDArray[Any], epsilon: float) -> NDArray[np.bool_]:
    """[K] which of `weights` the epsilon cutoff keeps."""
    total = float(weights.sum(dtype=np.float64))
    kept: NDArray[np.bool_] = (weights >= np.float64(epsilon * total)) | (weights == weights.max())
    return kept


def eta_keeps(scores: NDArray[Any], weights: NDArray[Any], epsilon: float) -> NDArray[np.bool_]:
    """[K] which of `weights` the eta cutoff keeps."""
    threshold = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy_of(scores, weights)))
    return epsilon_keeps(weights, threshold)
