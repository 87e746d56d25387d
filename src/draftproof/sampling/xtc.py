"""XTC: with some probability, exclude the top choices: all tokens above a threshold but the least probable of them.

Formula: with the coin of the row's position, A = the tokens of probability >= threshold; if A has two tokens or more,
remove all of A but its least probable one.
In: weights [K], threshold in [0, 0.5], and whether the coin fell. Out: indices [<= K] ascending.
The coin persists: it is a function of the request's seed and of the position (Purpose.XTC), and never redrawn, neither
after a rejection nor in the next pass. So the law at a position is a function of the position's coin; the text's law
over fresh seeds is the mixture over independent coins, and every verifier is exact given the coins. That is what
`prove` shows: the coins are drawn inside the enumeration.
Ties: "one" keeps exactly one of A, the highest id among the least probable (llama.cpp, whose own choice among ties is
unspecified); "above" keeps every tie with the least probable, and A is the tokens strictly above the threshold
(mlx-lm, without its list of special tokens).
Edge cases: the most probable token may be removed, so temperature 0 is refused with it. The coin is asked for only
where it decides something: A has two tokens, and removing leaves another row.
Source: P. E. Weidmann, text-generation-webui pull request 6335; llama.cpp's xtc sampler; mlx-lm's apply_xtc.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class XtcTies(Enum):
    """Which tokens are top choices, and which of them stays."""

    ONE = "p >= threshold; one stays, the highest id among the least probable"
    ABOVE = "p > threshold; ties with the least probable stay"


def excluded(weights: NDArray[Any], threshold: float, ties: XtcTies) -> NDArray[np.bool_] | None:
    """[K] which of `weights` go if the coin falls; None if none would."""
    limit = np.float64(threshold * float(weights.sum(dtype=np.float64)))
    top = weights >= limit if ties is XtcTies.ONE else weights > limit
    # A token of weight 0 is none of the choices, whatever the threshold.
    top &= weights > 0
    if np.count_nonzero(top) < 2:
        return None
    least = weights[top].min()
    if ties is XtcTies.ONE:
        top[np.flatnonzero(top & (weights == least))[-1]] = False
    else:
        top &= weights > least
    return top if top.any() else None
