"""Holm's procedure with weights: which hypotheses are rejected at one family-wise false-alarm rate.

Rule: in the order of p/w, reject while p_i <= alpha w_i / (sum of the weights not yet rejected). No assumption about
dependence. Source: Holm 1979, section 3 (weighted).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.audit.scores import Floats


def adjusted(p_values: Sequence[float] | Floats, weights: Sequence[float] | Floats) -> Floats:
    """[M] adjusted p-values: hypothesis i is rejected at the family-wise rate alpha iff adjusted[i] <= alpha."""
    p, w = np.asarray(p_values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    order = np.argsort(p / w, kind="stable")
    left = np.cumsum(w[order][::-1])[::-1]
    running = np.maximum.accumulate(np.minimum(p[order] / w[order] * left, 1.0))
    found = np.empty_like(running)
    found[order] = running
    return found


def smallest_adjusted(p_values: Floats, weights: Floats) -> Floats:
    """[...] the smallest adjusted p-value of each run: p_values [..., M], weights [M].

    It decides whether any is rejected.
    """
    smallest: Floats = np.minimum((p_values / weights).min(-1) * weights.sum(), 1.0)
    return smallest
