"""What passes are taken to cost by their width, given what widths have shown: a line that never falls.

No pass is taken to cost less than a narrower one: where measured shapes fall, they are scatter, and neighbours that do
count as one knot, with the mean of all that was measured of them, at the middle of where it was (`rising`). Between
knots costs lie on a straight line: were they as flat as such neighbours' mean, all but the last of these would look too
dear, and that one for nothing.
Where times scatter, a width that was measured n times is hopefully as cheap as DOUBT standard errors of its mean below
it, so that an unlucky first measurement is not the last. From the last knot to the widest width that was measured the
line goes on as before; beyond, it has slope FIRST_SLOPE, or the mean slope from one token on if that is steeper: it is
tried before it is known to be dear, but costs are taken to be convex.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.rising import rising

FIRST_SLOPE: Final = 0.05
"""What one more token adds to a pass over one token, as a share, until it is measured."""
MIN_TOLD: Final = 5
"""A pass over fewer tokens says nothing about wider ones: they differ by less than clocks do."""
DOUBT: Final = 2.0
"""Standard errors."""


class Curve:
    """Costs relative to those of a pass over one token, which is the first of `widths` [n], rising.

    shapes [n]: logarithms of measured costs. counts [n]: of measurements. scatter: the variance of a measurement.
    """

    def __init__(self, widths: Sequence[int], shapes: Sequence[float], counts: Sequence[int], scatter: float) -> None:
        self._widths: list[float] = []
        self._expected: list[float] = []
        self._hopeful: list[float] = []
        first = 0
        for shape, count, size in rising(zip(shapes, counts, strict=True)):
            own, nums = widths[first : first + size], counts[first : first + size]
            self._widths.append(sum(width * num for width, num in zip(own, nums, strict=True)) / sum(nums))
            self._expected.append(exp(shape))
            self._hopeful.append(exp(shape - (DOUBT * sqrt(scatter / count) if first else 0.0)))
            first += size
        self._go_on_to(widths[-1])
        self._slopes = tuple(slope_beyond(widths[-1], costs[-1]) for costs in (self._expected, self._hopeful))

    def _go_on_to(self, widest: int) -> None:
        """A knot at the widest that was measured, on the last two's line."""
        if self._widths[-1] == widest:
            return
        for costs in (self._expected, self._hopeful):
            slope = 0.0
            if len(costs) > 1:
                slope = max(costs[-1] - costs[-2], 0.0) / (self._widths[-1] - self._widths[-2])
            costs.append(costs[-1] + slope * (widest - self._widths[-1]))
        self._widths.append(widest)

    def expected(self, width: int) -> float:
        """As it was measured."""
        return self._at(width, self._expected, self._slopes[0])

    def hopeful(self, width: int) -> float:
        """As little as it may well be."""
        return self._at(width, self._hopeful, self._slopes[1])

    def hopeful_of(self, widths: NDArray[Any]) -> NDArray[np.float64]:
        """[n] `hopeful` of widths [n]."""
        costs: NDArray[np.float64] = np.interp(widths, self._widths, self._hopeful)
        costs += self._slopes[1] * np.maximum(widths - self._widths[-1], 0.0)
        return costs

    def _at(self, width: int, costs: Sequence[float], slope: float) -> float:
        right = bisect_left(self._widths, width)
        if right == len(costs):
            return costs[-1] + slope * (width - self._widths[-1])
        if right == 0:
            return costs[0]
        before, after = self._widths[right - 1], self._widths[right]
        return costs[right - 1] + (width - before) / (after - before) * (costs[right] - costs[right - 1])


def slope_beyond(widest: float, cost: float) -> float:
    """Beyond the widest measured pass, of such a cost."""
    return max(FIRST_SLOPE, (cost - 1.0) / (widest - 1)) if widest >= MIN_TOLD else FIRST_SLOPE
