"""A ratio of sums over prompts, and its 95 % interval: prompts are the sample, which another set of them would vary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

NORMAL_95: Final = 1.96


def ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(sum of firsts / sum of seconds, half-width of its interval); pairs, one for each prompt.

    The spread is that of the residuals first - ratio * second. The half-width is infinite for a single pair.
    """
    above, below = sum(first for first, _ in pairs), sum(second for _, second in pairs)
    rate, count = above / below, len(pairs)
    if count < 2:
        return rate, math.inf
    spread = math.sqrt(sum((first - rate * second) ** 2 for first, second in pairs) / (count - 1))
    return rate, NORMAL_95 * spread * math.sqrt(count) / below
