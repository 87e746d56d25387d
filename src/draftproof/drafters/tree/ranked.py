"""Ranking a law's tokens in one call, where numba is installed (`draftproof[cpu]`).

A tree over a vocabulary ranks some fifty laws of tens of thousands of tokens a step. Each takes NumPy a dozen passes.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from draftproof.drafters.tree.compiling import compiling


@cache
def ranking() -> Any:
    """The compiled function `rank`; None without numba. The first call on a machine compiles for some seconds."""
    try:
        from draftproof.drafters.tree.ranked_code import rank
    except ImportError:
        return None
    probs, numbers = np.full(2, 0.5, dtype=np.float32), np.zeros(2)
    try:
        with compiling("the ranking of children"):
            rank(probs, probs, 1.0, probs.copy(), numbers, np.zeros(2, dtype=np.int64))
    except Exception as error:  # whatever a release of numba raises where it can't compile it
        warnings.warn(f"children are ranked by NumPy, since numba refuses: {error}", RuntimeWarning, stacklevel=2)
        return None
    return rank
