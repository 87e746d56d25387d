"""Top-p from the largest logits alone, where the others can't change what is kept.

Rule: as in top_p.py. The head holds every token whose score is -DEPTH or more. The total that top-p's mass is a share
of lies between the head's own and that plus exp(-DEPTH) for each token outside, give or take rounding. The prefix whose
mass reaches top_p of the lower end is the answer if it reaches top_p of the upper end too.
In: what filters left, top_p, the tie rule. Out: the indices that `top_p` gives, or None where that can't be said here:
weights are made already, the head is no small part, or an edge lies between the two ends.
Edge cases: an answer never reaches down to the head's end, where a token outside could tie: seven tokens outside for
each inside are taken to weigh as much, so all that the end weighs is less than what lies between the two ends.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.survivors import Survivors
from draftproof.sampling.temperature import weights_of
from draftproof.sampling.top_p import TopPTies, top_p

DEPTH: Final = 18.0
_SMALL: Final = 4096
_LARGEST_SHARE: Final = 8
_ROUNDING: Final = 1e-5
"""Of a sum in the weights' type, pairwise over up to a million: some 35 roundings of 6e-8."""


def top_p_head(left: Survivors, mass: float, ties: TopPTies) -> NDArray[np.int64] | None:
    """Indices [<= K] of the tokens that top-p keeps, ascending; None if it takes the whole row to say."""
    size = len(left.logits)
    if size < _SMALL:
        return None
    near = left.near(-DEPTH)
    if near is None or len(near) * _LARGEST_SHARE > size:
        return None
    weights = weights_of(left.scores_at(near))
    total = float(weights.sum(dtype=np.float64))
    outside = (size - len(near)) * math.exp(-DEPTH)
    kept = top_p(weights, total * (1 - _ROUNDING), mass, ties)
    mass_kept = float(weights[kept].sum(dtype=np.float64))
    return near[kept] if mass_kept >= mass * (total + outside) * (1 + 2 * _ROUNDING) else None
