"""What is left of a target row while the drafted tokens at its position are tested one after the other.

Rule: it begins as the target's law p; a child that fails takes its law q away: p becomes max(scale * p - q, 0),
normalised, where scale is 1 or the mass with which its rule reaches the row.
Inputs: the target's law, then the law of each child that failed. Outputs: probabilities, the mass that was left before
normalising, and a draw.
Exact because min(p, q) + max(p - q, 0) = p at each child, given the children before it.
Edge cases: float32 rows are carried on in float64, since they are subtracted from many times. If nothing is left, which
exact arithmetic only allows where the child can't have failed, the row stays as it was.
Source: the residual of Leviathan et al. 2211.17192, repeated as in SpecInfer (2305.09781) and Sequoia (2402.12374).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Law, Noise, Number, Weights
from draftproof.errors import DraftContractError


class Remaining:
    """The target's probabilities at one position, less what was tested; see the module."""

    __slots__ = ("_probs", "_token_ids")

    def __init__(self, target_law: Law) -> None:
        probs, self._token_ids = target_law.weights()
        self._probs: Weights = probs.astype(np.float64) if probs.dtype.kind == "f" else probs

    def prob(self, token_id: int) -> Number:
        """The probability that is left for `token_id`; 0 outside the target's law."""
        if self._token_ids is None:
            where = token_id if 0 <= token_id < len(self._probs) else None
        else:
            where = int(np.searchsorted(self._token_ids, token_id))
            where = where if where < len(self._token_ids) and self._token_ids[where] == token_id else None
        if where is None:
            return 0
        value = self._probs[where]
        return value.item() if isinstance(value, np.generic) else value

    def subtract(self, draft_law: Law, scale: Number = 1) -> Number:
        """Takes a failed child's law away; the mass of max(scale * p - q, 0). Raises DraftContractError on NaN."""
        left, mass = self._residual(draft_law, scale)
        if mass > 0:
            self._probs = left / mass
        return mass

    def draw(self, noise: Noise, key: Key) -> int:
        """A token id drawn from what is left."""
        return noise.choice(key, self._probs, self._token_ids)

    def _residual(self, draft_law: Law, scale: Number) -> tuple[Weights, Number]:
        probs = self._probs
        left = np.maximum(scale * probs - draft_law.at(self._token_ids, len(probs)), 0)
        mass = left.sum()
        mass = mass.item() if isinstance(mass, np.generic) else mass
        if not 0 <= mass < math.inf:
            raise DraftContractError(f"the residual's mass is {mass}: the draft's law holds NaN or infinite values")
        return left, mass

    @property
    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        """([K] probabilities, [K] token ids or None)."""
        return self._probs, self._token_ids
