"""The exponential race: which token a field of 32-bit words draws, and which tokens can still win it.

Rule: token i has v = (k + 1/2) / 2^32 of its word k and E = -log(1 - v); the winner is argmin E / w, the lowest index
on ties. E is compared in float64, in operations that IEEE 754 rounds alike everywhere, so that two devices never order
a near tie differently.
Only a few tokens need a logarithm: E >= v, so one whose v / w exceeds the best known E / w is out. Many need no word
either: v >= 2^-33, so one whose weight is below 2^-33 over the best known E / w is out whatever its word is. What is
left out can't win and can't tie, so the winner is that of the whole race.
In: words [K], weights [K] that are not negative and need not sum to 1. Out: an index, or the blocks that can win.
Edge cases: no positive weight, NaN, an infinite or a negative one raise LawError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import LawError
from draftproof.laws import Number, Weights
from draftproof.philox import MASK

BLOCK: Final = 4
"""Tokens that one Philox call serves."""
SMALLEST_VALUE: Final = 2.0**-33
"""The least v that a word can give; E is larger still."""

_SLACK: Final = 1e-6  # far above what float32 weights and float64 quotients lose
_SMALLEST_NORMAL: Final = 1e-30  # below it float32 thresholds lose bits
_MOST: Final = 0.75  # the share of blocks from which on it is quicker to look at all


def race(integers: NDArray[np.uint32], weights: Weights) -> int:
    """argmin E / w, the lowest index on ties.

    integers: [K] 32-bit words of a field. weights: [K] non-negative, not necessarily summing to 1.
    Raises LawError if no weight is positive, or one is NaN, infinite or negative.
    """
    values = weights if weights.dtype in (np.float32, np.float64) else weights.astype(np.float64)
    largest = _checked(float(values.max()), len(values))
    if values.dtype == np.float32 and largest < 1e-12:
        values = values.astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        ratios = integers.astype(values.dtype)
        ratios += values.dtype.type(0.5)
        ratios /= values
    leader = int(ratios.argmin())
    if ratios[leader] < 0:
        raise _negative(leader, float(values[leader]))
    bound = exponential(int(integers[leader])) / float(values[leader])
    # v / w is rounded to the weights' precision twice, E / w to float64.
    survivors = np.flatnonzero(ratios <= bound * 2.0**32 * (1 + _SLACK))
    if len(survivors) == 1:
        return leader
    return int(min((exponential(int(integers[i])) / float(values[i]), i) for i in survivors)[1])


def race_of_few(integers: Sequence[int], weights: Sequence[Number]) -> int:
    """`race` without arrays, which take longer to make than a few tokens to compare."""
    values = [float(weight) for weight in weights]
    # A maximum may pass over NaN.
    _checked(math.nan if any(map(math.isnan, values)) else max(values), len(values))
    if min(values) < 0:
        raise _negative(values.index(min(values)), min(values))
    ratios = [
        ((integer + 0.5) / value, index)
        for index, (integer, value) in enumerate(zip(integers, values, strict=True))
        if value > 0
    ]
    leader = min(ratios)[1]
    bound = exponential(integers[leader]) / values[leader] * 2.0**32 * (1 + _SLACK)
    survivors = [index for ratio, index in ratios if ratio <= bound]
    return min((exponential(integers[index]) / values[index], index) for index in survivors)[1]


def blocks_that_can_win(weights: Weights, leader: int, word: int) -> NDArray[np.int64] | None:
    """[B] ascending blocks of four tokens outside of which no token can win or tie; None for most or all of them.

    weights: [K] floats, K a multiple of four. leader, word: any token of positive weight, and its word; the largest
    weight leaves the fewest blocks. Raises LawError as `race` does.
    """
    largest = _checked(float(weights[leader]), len(weights))
    threshold = SMALLEST_VALUE * largest / exponential(word) * (1 - _SLACK)
    if not threshold > _SMALLEST_NORMAL:
        return None
    # Four booleans read as one integer: a block is out if all are.
    can_win = (weights >= weights.dtype.type(threshold)).view(np.uint32) != 0
    if np.count_nonzero(can_win) > _MOST * len(can_win):
        return None
    smallest = int(weights.argmin())
    if weights[smallest] < 0:
        raise _negative(smallest, float(weights[smallest]))
    return np.flatnonzero(can_win)


def exponential(integer: int) -> float:
    """E = -log(1 - (k + 1/2) / 2^32) of a 32-bit word k."""
    return _negated_log((float(MASK - integer) + 0.5) * 2.0**-32)


def _checked(largest: float, num_tokens: int) -> float:
    if not 0 < largest < np.inf:
        raise LawError(f"no token can be drawn: the largest weight of {num_tokens} is {largest}, must be positive")
    return largest


def _negative(index: int, weight: float) -> LawError:
    return LawError(f"no token can be drawn: index {index} has the negative weight {weight}")


_LOG2_HIGH: Final = 0.693147180369123816490  # the upper 33 bits of log 2: exact products with small integers
_LOG2_LOW: Final = 1.90821492927058770002e-10
_SERIES: Final = tuple(2.0 / (2 * n + 1) for n in range(12, 0, -1))


def _negated_log(x: float) -> float:
    """-log x for 0 < x < 1, within 2 ulp, in additions, multiplications and one division alone.

    x = m 2^e with m in [1/2, 1) doubled where below sqrt(1/2); s = (m - 1)/(m + 1), |s| < 0.172;
    log m = 2 s + (2/3) s^3 + ... to the 25th power, whose remainder is below 1e-20.
    """
    exponent = 0
    while x < 0.70710678118654752440:
        x, exponent = x * 2.0, exponent - 1
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    tail = 0.0
    for coefficient in _SERIES:
        tail = (tail + coefficient) * square
    return -(exponent * _LOG2_HIGH + (2.0 * s + (s * tail + exponent * _LOG2_LOW)))
