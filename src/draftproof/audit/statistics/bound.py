"""An upper bound on the pooled, binned deviation, for tokens that depend on each other.

D = max over sets A of bins of |mean over t of P(U_t in A | past) - |A|/K|, P the engine's own law: the total variation
between the engine's average binned law and the uniform one. With probability 1 - alpha,

    D <= max over A of |n_A / N - |A|/K| + sqrt((K log 2 + log(1/alpha)) / (2 N)).

Why it holds for dependent tokens: for each A, n_A - sum of P(U_t in A | past) is a martingale whose steps lie in an
interval of length 1 known beforehand, so Azuma and Hoeffding's inequality gives exp(-2 x^2/N); the 2^K sets cost K
log 2. What it does not say: deviations that cancel between contexts or inside a bin are not in D. Source: Azuma 1967;
Hoeffding 1963, theorem 2 and section 5's remark on martingales.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from draftproof.audit.scores import Floats
from draftproof.audit.statistics.pit import bin_counts

BOUND_BINS: Final = 8


def margin(num_tokens: int, alpha: float, num_bins: int = BOUND_BINS) -> float:
    """The second term; infinite without tokens."""
    if num_tokens == 0:
        return math.inf
    return math.sqrt((num_bins * math.log(2) + math.log(1 / alpha)) / (2 * num_tokens))


def upper_bound(uniforms: Floats, alpha: float, num_bins: int = BOUND_BINS) -> tuple[float, float]:
    """(observed deviation, its upper confidence bound at 1 - alpha, at most 1) of `uniforms` [N]."""
    num_tokens = len(uniforms)
    if num_tokens == 0:
        return 0.0, 1.0
    shares = bin_counts(uniforms, num_bins) / num_tokens
    observed = float(np.abs(shares - 1 / num_bins).sum() / 2)
    return observed, min(observed + margin(num_tokens, alpha, num_bins), 1.0)
