"""p-values of sums whose steps have mean zero given the past.

S = sum of d_t, with |d_t| <= b, V = sum of the conditional variances, all of them known from the target's laws.
Two-sided. Where V is large the normal tail with the skewness corrected (Cornish and Fisher's second term, towards
larger p only); where it is not, Freedman's inequality, 2 exp(-(V/b^2) h(b|S|/V)) with h(u) = (1 + u) log(1 + u) - u.
Source: Freedman 1975, theorem 1.6 in Bennett's form; Hall, The Bootstrap and Edgeworth Expansion, section 2.5.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from draftproof.audit.scores import Floats
from draftproof.audit.statistics.needs import special

ENOUGH_VARIANCE: Final = 25.0
"""In units of b^2: fewer than this, and the normal tail is not used."""
_LARGEST_CORRECTION: Final = 0.4


def martingale_p(
    total: Floats, variance: Floats, third: Floats, step: float = 1.0, shift: Floats | float = 0.0
) -> Floats:
    """Two-sided p-values [...].

    total, variance, third: S, V and the sum of the third central moments, [...]. step: b. shift: how far rounding may
    have moved the mean of S; it is taken off |S|.
    """
    size = np.maximum(np.abs(total) - shift, 0.0)
    safe = np.maximum(variance, 1e-100)
    z = size / np.sqrt(safe)
    skew = np.sign(total) * third / safe**1.5
    correction = np.maximum(skew * (z * z - 1) / 6, 0.0)
    normal = special().erfc(np.maximum(z - correction, 0.0) / np.sqrt(2.0))
    usable = (variance >= ENOUGH_VARIANCE * step**2) & (correction <= _LARGEST_CORRECTION * np.maximum(z, 1e-12))
    relative = np.minimum(step * size / safe, 1e300)
    # h(u) ~ u^2/2 cancels in the written form for small u.
    h = np.where(relative < 1e-4, relative**2 / 2, (1 + relative) * np.log1p(relative) - relative)
    freedman = np.minimum(2 * np.exp(-np.minimum(safe / step**2 * h, 745.0)), 1.0)
    p_values: Floats = np.where(size <= 1e-9, 1.0, np.where(usable, normal, freedman))
    return p_values


def signed_z(total: Floats, variance: Floats) -> Floats:
    """S / sqrt(V), 0 where V is 0."""
    return np.where(variance > 0, total / np.sqrt(np.maximum(variance, 1e-300)), 0.0)
