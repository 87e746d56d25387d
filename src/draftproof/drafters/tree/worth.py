"""From which survival on a node is worth expanding, as earlier answers of the same request tell.

What expanding nodes would bring takes a dozen array operations to find out, each round anew, and the answers of one
request's drafts are much alike: a round is worth its time where its best node is likely enough, and a further node in
it where that one is. So the least survival that was found worth it and the largest that wasn't are remembered, for the
first node of a round and for the others; only what lies between is asked again. Each draft moves the two apart, so that
costs and rates that change are asked about. Nothing that is emitted depends on a tree.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FADING: Final = 0.05
"""By which share each draft moves what is taken to be worth it up, and what isn't down."""


class Worth:
    """Of one request; `known` answers from what was learned, `learn` takes in an answer."""

    def __init__(self) -> None:
        self._enough = [np.inf, np.inf]
        self._too_little = [0.0, 0.0]

    def fade(self) -> None:
        """Another draft begins."""
        self._enough = [limit * (1.0 + FADING) for limit in self._enough]
        self._too_little = [limit * (1.0 - FADING) for limit in self._too_little]

    def known(self, survival: NDArray[np.float64]) -> int | None:
        """How many nodes to expand, None where it has to be asked. survival: [n], falling, n of 1 or more."""
        if survival[0] < self._enough[0]:
            return 0 if survival[0] <= self._too_little[0] else None
        num_enough = 1 + int(np.count_nonzero(survival[1:] >= self._enough[1]))
        return num_enough if num_enough == len(survival) or survival[num_enough] <= self._too_little[1] else None

    def learn(self, survival: NDArray[np.float64], num_worth: int) -> None:
        """The first `num_worth` of nodes of such survivals were worth expanding."""
        if num_worth == 0:
            self._refuse(0, float(survival[0]))
            return
        self._accept(0, float(survival[0]))
        if num_worth > 1:
            self._accept(1, float(survival[num_worth - 1]))
        if num_worth < len(survival):
            self._refuse(1, float(survival[num_worth]))

    def _accept(self, place: int, survival: float) -> None:
        self._enough[place] = min(self._enough[place], survival)
        self._too_little[place] = min(self._too_little[place], self._enough[place])

    def _refuse(self, place: int, survival: float) -> None:
        self._too_little[place] = max(self._too_little[place], survival)
        # What is refused is not enough any more.
        self._enough[place] = max(self._enough[place], float(np.nextafter(survival, np.inf)))
