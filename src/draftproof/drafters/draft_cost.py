"""What drafting n tokens costs: a + b · n seconds, both learned on line.

A chain drafter pays for each token, a block drafter for each draft, a drafter that takes in the target's features for
both. A mean per token would be wrong for all but the first: whoever drafts one token at a time would think that seven
cost seven times as much, and never find out.
Kalman filter on (a, b), each measurement with a noise of a share of what is expected. Lengths that are always the same
leave a and b where earlier ones put them, along a + b · n = const. Before the first one, a and b · n are alike.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

NOISE: Final = 0.25
"""Standard deviation of a measurement, as a share of what is expected."""
DRIFT: Final = 0.05
"""Of each part from one draft to the next, the same."""
MOST: Final = 2.0
"""A measurement counts as at most so many times what is expected: other processes cause outliers."""


class DraftCost:
    """`observe` measured drafts, ask for the cost `of` so many tokens."""

    def __init__(self) -> None:
        self._parts = np.zeros(2)
        self._spread: np.ndarray[tuple[int, int], np.dtype[np.float64]] | None = None

    def observe(self, num_tokens: int, seconds: float, most: float = math.inf) -> None:
        """Drafting `num_tokens`, 1 or more, took so long. most: seconds that the first one may count as."""
        asked = np.array([1.0, float(num_tokens)])
        if self._spread is None:
            seconds = min(seconds, most)
            self._spread = np.diag(np.square(max(seconds, 1e-12) / asked))
        expected = float(self._parts @ asked)
        if expected > 0.0:
            seconds = min(seconds, MOST * expected)
        level = max(expected, seconds, 1e-12)
        gained = self._spread @ asked
        gain = gained / (float(asked @ gained) + (NOISE * level) ** 2)
        self._parts = self._parts + gain * (seconds - expected)
        self._spread = self._spread - np.outer(gain, gained) + np.diag(np.square(DRIFT * level / asked))
        if self._parts.min() < 0.0:
            # Neither part is negative: all of it is the other's.
            self._parts = np.array([0.0, seconds / num_tokens] if self._parts[0] < 0.0 else [seconds, 0.0])

    def of(self, num_tokens: int) -> float:
        """Seconds; 0 for no tokens, or before anything was measured."""
        return float(self._parts[0] + self._parts[1] * num_tokens) if num_tokens else 0.0
