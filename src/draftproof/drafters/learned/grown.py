"""Growing a tree over short lists in one call, where numba is installed (`draftproof[cpu]`).

Round by round (`tree/drafter.py`) each round is a few dozen calls of NumPy, whose code no cache holds any more after a
pass of the target has read its weights. The rounds' fixed point is the best tree for its shares; so is what this grows,
heaviest candidate first (`grown_code.py`).
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from draftproof.drafters.tree.compiling import compiling
from draftproof.drafters.tree.scores import NoiseScores
from draftproof.noise import KeyedNoise
from draftproof.philox import MASK

Told = tuple[float, int, int, int, int]


@cache
def growing() -> Any:
    """The compiled function `grow`; None without numba. The first call on a machine compiles for some seconds."""
    try:
        from draftproof.drafters.learned.grown_code import grow
    except ImportError:
        return None
    size, rank, length = 4, 2, 2
    ids, rows = np.arange(size), np.zeros((size, rank), dtype=np.float32)
    try:
        with compiling("the growth of trees"):
            grow(
                np.zeros((2, size), dtype=np.float32), ids, rows, rows, 1.0, 1.0, length, 1.0, (0.0, 0, 0, 0, 0),
                2, 2, 2, np.zeros(2), np.zeros(2), ids, np.full(size, 1 / size, dtype=np.float32),
                np.zeros(size + 1, dtype=np.int32), np.zeros((2, length, rank), dtype=np.float32),
            )  # fmt: skip
    except Exception as error:  # whatever a release of numba raises where it can't compile it
        warnings.warn(f"trees are grown in rounds, since numba refuses: {error}", RuntimeWarning, stacklevel=2)
        return None
    return grow


def noise_of(scores: NoiseScores, position: int) -> Told | None:
    """What `grow` is told of the noise, from a position on; None for noise that isn't the keyed streams'."""
    noise = scores.noise
    if scores.noise_weight == 0:
        return 0.0, 0, 0, 0, 0
    if type(noise) is not KeyedNoise:
        return None
    return float(scores.noise_weight), position, noise.sample_index, noise.seed & MASK, noise.seed >> 32
