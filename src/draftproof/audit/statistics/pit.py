"""Uniformity of the randomised positions U: chi-square over bins of equal probability.

Rule: X^2 = sum of (n_k - N/K)^2 / (N/K) over K bins of [0, 1], against chi-square with K - 1 degrees of freedom.
K is 16, halved until a bin expects 50 tokens; below 2 bins of 50 there is no test and p is 1.
Rounding: laws whose total variation is at most `shift` have X^2 below a chi-square with noncentrality 2 N K shift^2.
Sees: any bias that moves mass along the order. Power: noncentrality is at least 4 N TV^2 of the binned law.
Source: Rosenblatt 1952; Czado, Gneiting & Held 2009, section 2 (randomised for discrete laws).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from draftproof.audit.scores import Floats
from draftproof.audit.statistics.needs import stats

NUM_BINS: Final = 16
TOKENS_PER_BIN: Final = 50


def num_bins_for(num_tokens: int, most: int = NUM_BINS) -> int:
    """How many bins `num_tokens` can fill; 0 if there are too few for two."""
    bins = most
    while bins >= 2 and num_tokens < bins * TOKENS_PER_BIN:
        bins //= 2
    return bins if bins >= 2 else 0


def bin_counts(uniforms: Floats, num_bins: int) -> Floats:
    """[..., K] how many of `uniforms` [..., N] lie in each of K equal bins."""
    places = np.minimum((uniforms * num_bins).astype(np.int64), num_bins - 1)
    flat = places.reshape(-1, places.shape[-1])
    rows = np.arange(len(flat))[:, None] * num_bins
    counts = np.bincount((flat + rows).ravel(), minlength=len(flat) * num_bins)
    return counts.reshape(*uniforms.shape[:-1], num_bins).astype(np.float64)


def chi_square(uniforms: Floats, *, most_bins: int = NUM_BINS, shift: float = 0.0) -> tuple[Floats, Floats]:
    """(binned total variation [...], p-values [...]) of `uniforms` [..., N]."""
    num_tokens = uniforms.shape[-1]
    num_bins = num_bins_for(num_tokens, most_bins)
    if not num_bins:
        return np.zeros(uniforms.shape[:-1]), np.ones(uniforms.shape[:-1])
    counts = bin_counts(uniforms, num_bins)
    expected = num_tokens / num_bins
    statistic = ((counts - expected) ** 2).sum(-1) / expected
    variation = np.abs(counts / num_tokens - 1 / num_bins).sum(-1) / 2
    noncentrality = 2 * num_tokens * num_bins * shift**2
    if noncentrality > 0:
        return variation, stats().ncx2.sf(statistic, num_bins - 1, noncentrality)
    return variation, stats().chi2.sf(statistic, num_bins - 1)
