"""What filters have left of a row: its logits, and the scores and weights made from them.

Rule: every value here is a function of one token's logit, the row's maximum and a temperature, so a
filter changes nothing for the tokens that it keeps.
In: logits [K] in ascending order of id, the row's maximum. Out: scores and weights [K] for a temperature,
made when first asked for: a filter that looks at logits alone spares the others' cost.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from draftproof.sampling.temperature import scores_of, weights_of


class Survivors:
    """Logits [K] that filters have left so far."""

    __slots__ = ("_made", "_max_logit", "logits")

    def __init__(self, logits: NDArray[Any], max_logit: Any) -> None:
        self.logits, self._max_logit = logits, max_logit
        self._made: dict[tuple[str, float], NDArray[Any]] = {}

    def scores(self, temperature: float) -> NDArray[Any]:
        """[K] scores at `temperature`."""
        key = ("scores", temperature)
        if key not in self._made:
            self._made[key] = scores_of(self.logits, self._max_logit, temperature)
        return self._made[key]

    def weights(self, temperature: float) -> NDArray[Any]:
        """[K] weights at `temperature`."""
        key = ("weights", temperature)
        if key not in self._made:
            self._made[key] = weights_of(self.scores(temperature))
        return self._made[key]

    def keep(self, kept: NDArray[Any]) -> None:
        """Drop all entries but those at `kept`, ascending indices."""
        self.logits = self.logits[kept]
        self._made = {key: values[kept] for key, values in self._made.items()}
