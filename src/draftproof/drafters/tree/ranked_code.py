"""The best children of a node, as numba compiles it: what `scores.py` finds in a dozen array operations.

Imported where numba is there, and compiled once for all processes: its cache lies beside this file or in the user's
cache folder.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

REASSOCIATED = {"reassoc", "nsz", "contract", "arcp", "nnan"}
BLOCK = 64


def compiled(**options: Any) -> Any:
    """njit with a cache, or without one where no folder can be written."""

    def decorate(function: Any) -> Any:
        try:
            return njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return decorate


@compiled(fastmath=REASSOCIATED)
def largest_in(values):  # type: ignore[no-untyped-def]
    """The largest of values [K], 1 or more, in vectors."""
    most = values[0]
    for index in range(1, len(values)):
        most = max(most, values[index])
    return most


@compiled()
def best_of(values, count, best, order):  # type: ignore[no-untyped-def]
    """The largest of the first `count` values above 0 into best [K], their places into order [K], the largest first;
    returns how many there are. Of BLOCK values in which none is large enough it looks at the largest alone."""
    num_best = 0
    for begin in range(0, count, BLOCK):
        stop = min(begin + BLOCK, count)
        if num_best == len(best) and largest_in(values[begin:stop]) <= best[num_best - 1]:
            continue
        for index in range(begin, stop):
            value = values[index]
            if value <= 0.0 or (num_best == len(best) and value <= best[num_best - 1]):
                continue
            at = num_best if num_best < len(best) else len(best) - 1
            while at > 0 and best[at - 1] < value:
                best[at], order[at] = best[at - 1], order[at - 1]
                at -= 1
            best[at], order[at] = value, index
            num_best = min(num_best + 1, len(best))
    return num_best


@compiled()
def to_log_shares(best, num_best, total, sharpness):  # type: ignore[no-untyped-def]
    """In place of the largest values: the logarithms of their shares of `total`, as scores.py has them."""
    if num_best == 0:
        return
    most, last, rest, sharpened = best[0], best[num_best - 1] / best[0], total, 0.0
    for index in range(num_best):
        rest -= best[index]
        best[index] = (best[index] / most) ** sharpness
        sharpened += best[index]
    sharpened += max(rest, 0.0) / most * last ** (sharpness - 1.0)
    for index in range(num_best):
        best[index] = min(math.log(best[index] / sharpened), 0.0)


@compiled(fastmath=REASSOCIATED)
def rank(probs, powers, sharpness, values, best, order):  # type: ignore[no-untyped-def]
    """Of probs [K] times powers [K] ([0]: times nothing), the largest into best [C] as log shares, their places into
    order [C]; returns how many there are. values [K]: scratch."""
    total = 0.0
    if len(powers):
        for place in range(len(probs)):
            values[place] = probs[place] * powers[place]
            total += values[place]
    else:
        for place in range(len(probs)):
            values[place] = probs[place]
            total += values[place]
    num_best = best_of(values, len(probs), best, order)
    to_log_shares(best, num_best, total, sharpness)
    return num_best
