"""By how much a drafter is too sure of itself, depth by depth: learned from committed verdicts.

A path's weight is a product of shares, each taken for the probability that the target goes on so from where it got to.
A drafter that doesn't see its own tokens, or has seldom seen sampled ones, is sure of more than it knows further down.
Rule: of each depth, (accepted + STRENGTH * above) / (claimed + STRENGTH), at most 1, where `claimed` sums the shares of
the verified children of nodes that the target got to, `accepted` counts those that it went on to, and `above` is the
ratio of the depth before; with forgetting. Its logarithm is added to the children's log shares.
So nodes of one weight have one probability, whatever their depth, and the best-first tree is the best one.
Which tree is verified matters for speed alone, where the output can't depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_DEPTHS: Final = 16
"""Deeper nodes count as those of the last one."""
STRENGTH: Final = 6.0
FORGETTING: Final = 0.998
NONE: Final[NDArray[np.float64]] = np.zeros(MOST_DEPTHS)


class Discounts:
    """Of one kind of weights."""

    def __init__(self) -> None:
        self.logs: NDArray[np.float64] = NONE
        """[MOST_DEPTHS] to be added to the log shares of children of each depth, at most 0. Replaced, never changed."""
        self._accepted, self._claimed = [0.0] * MOST_DEPTHS, [0.0] * MOST_DEPTHS

    def observe(
        self,
        log_weights: Sequence[float],
        depths: Sequence[int],
        parents: Sequence[int],
        path: Collection[int],
        logs: NDArray[np.float64],
    ) -> None:
        """Takes in a verified tree: of its nodes [n] the weights, the depths from 0 on and the parents (-1: the
        context); the nodes on the accepted path. logs: those that were in its weights."""
        if not log_weights:
            return
        discounts, reached = logs.tolist(), {-1, *path}
        for node, (weight, depth, parent) in enumerate(zip(log_weights, depths, parents, strict=True)):
            if parent in reached:
                depth = min(depth, MOST_DEPTHS - 1)
                above = log_weights[parent] if parent >= 0 else 0.0
                self._claimed[depth] += math.exp(weight - above - discounts[depth])
                self._accepted[depth] += node in reached
        ratio, found = 1.0, []
        for accepted, claimed in zip(self._accepted, self._claimed, strict=True):
            ratio = min((accepted + STRENGTH * ratio) / (claimed + STRENGTH), 1.0)
            found.append(math.log(ratio))
        self.logs = np.array(found)
        self._accepted = [FORGETTING * accepted for accepted in self._accepted]
        self._claimed = [FORGETTING * claimed for claimed in self._claimed]
