"""Typical-p: keep the tokens whose surprise is closest to the law's entropy, until their mass reaches typical_p.

Formula: d[i] = |-log p[i] - H|, H = -sum of p log p; in the order (d ascending, ties by weight descending, then id),
keep the shortest prefix of mass typical_p.
In: scores [K] <= 0 with maximum 0, their weights [K], typical_p in (0, 1). Out: indices [<= K] ascending.
Ties: "kept" keeps every token whose d equals the last one's, and "reaches" means >= (transformers); "cut" keeps the
prefix alone and must go above typical_p (llama.cpp, whose own order among ties is unspecified).
Edge cases: at least one token is kept, and it need not be the most probable one, so temperature 0 is refused with it;
typical_p = 1 never comes here. Entropy, distances and masses are in float64; tokens of weight 0 come last.
Source: Meister et al., arXiv 2202.00666, section 3; transformers' TypicalLogitsWarper; llama.cpp's typical sampler.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.entropy import surprises


class TypicalTies(Enum):
    """What happens at the edge of the kept mass."""

    KEPT = "ties with the last one are kept; mass >= typical_p"
    CUT = "ties are cut by probability, then id; mass > typical_p"


def typical_p(scores: NDArray[Any], weights: NDArray[Any], mass: float, ties: TypicalTies) -> NDArray[np.int64]:
    """Indices into `scores` [K] of the tokens that typical-p keeps, ascending."""
    surprise, entropy = surprises(scores, weights)
    distance = np.abs(surprise - entropy)
    probs = weights.astype(np.float64)
    order = np.lexsort((np.arange(len(distance)), -probs, distance))
    cumulated = np.cumsum(probs[order])
    # Rounding may leave the whole mass a little short of typical_p: then everything is kept.
    below = cumulated < mass * cumulated[-1] if ties is TypicalTies.KEPT else cumulated <= mass * cumulated[-1]
    last = min(int(np.count_nonzero(below)), len(order) - 1)
    if ties is TypicalTies.CUT:
        return np.sort(order[: last + 1])
    return np.flatnonzero(distance <= distance[order[last]])
