"""What filters have left of a row: its logits, and the scores and weights made from them.

Rule: every value here is a function of one token's logit, of a maximum and of the temperature, so a filter changes
nothing for the tokens that it keeps. The maximum is the row's, until a filter drops it (typical_p, XTC): then it is
that of the tokens left, so that their largest weight is 1 again.
In: logits [K] in ascending order of id, the row's maximum. Out: scores and weights [K], made when first asked for: a
filter that looks at logits alone spares the others' cost.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.temperature import scores_of, weights_of

_ROUNDING: Final = 1e-5
"""Of the logits' size: far above what float32 loses in a subtraction, a division and the limit itself."""


class Survivors:
    """Logits [K] that filters have left so far, and the temperature at which they are looked at."""

    __slots__ = ("_max_logit", "_scores", "_temperature", "_weights", "logits")

    def __init__(self, logits: NDArray[Any], max_logit: Any) -> None:
        self.logits, self._max_logit = logits, max_logit
        self._temperature = 1.0
        self._scores: NDArray[Any] | None = None
        self._weights: NDArray[Any] | None = None

    @property
    def temperature(self) -> float:
        """What the scores are divided by; 1 until it is set."""
        return self._temperature

    @temperature.setter
    def temperature(self, temperature: float) -> None:
        if temperature != self._temperature:
            self._temperature, self._scores, self._weights = temperature, None, None

    def scores(self) -> NDArray[Any]:
        """[K] scores, at most 0."""
        if self._scores is None:
            self._scores = scores_of(self.logits, self._max_logit, self._temperature)
        return self._scores

    def weights(self) -> NDArray[Any]:
        """[K] weights, of which the largest is 1."""
        if self._weights is None:
            self._weights = weights_of(self.scores())
        return self._weights

    def near(self, threshold: float) -> NDArray[np.int64] | None:
        """[K'] ascending indices of entries that include all whose score is `threshold` or more; None for all.

        Found without scores: logits are passed over that no rounding could lift to the threshold.
        """
        limit = float(self._max_logit) + self._temperature * threshold
        if self._scores is not None or not math.isfinite(limit):
            return None
        slack = _ROUNDING * (abs(float(self._max_logit)) + abs(self._temperature * threshold))
        return np.flatnonzero(self.logits >= self.logits.dtype.type(limit - slack)).astype(np.int64, copy=False)

    def scores_at(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """[K'] the scores of the entries at `indices` [K']; no others are made."""
        return scores_of(self.logits[indices], self._max_logit, self._temperature)

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Drop all entries but those at `kept`, ascending indices, one or more."""
        self.logits = self.logits[kept]
        largest = self.logits.max()
        if largest != self._max_logit:
            self._max_logit, self._scores, self._weights = largest, None, None
            return
        self._scores = None if self._scores is None else self._scores[kept]
        self._weights = None if self._weights is None else self._weights[kept]
