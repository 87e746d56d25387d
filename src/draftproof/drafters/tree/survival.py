"""How likely a candidate's weight makes it that the target gets there: calibrated on committed verdicts.

Rule: verified nodes are sorted into bins of their log weight, BIN wide; a bin's estimate is (accepted + STRENGTH *
weight) / (verified + STRENGTH), with forgetting, weight being exp of the bin's middle. Estimates never grow from a
heavier bin to a lighter one: those that would are lowered to the one before. Between the middles of two bins the
logarithm is on the straight line between theirs, so that nodes of one bin are told apart.
Before anything was verified a weight is taken at its word, which is what it claims to be.
`Offspring` says from this what expanding a node would bring.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BIN: Final = 0.5
NUM_BINS: Final = 32
STRENGTH: Final = 6.0
FORGETTING: Final = 0.998
FIRST_CHILDREN: Final[NDArray[np.float64]] = np.array([0.5, 0.15, 0.08, 0.05, 0.03, 0.02, 0.015, 0.01])
NUM_CHILDREN: Final = len(FIRST_CHILDREN)
ROUNDING: Final = 1e-9
CHILDREN_GAIN: Final = 0.03
SURE_OF: Final = (0.35, 0.65)
SURE: Final[NDArray[np.float64]] = np.array(SURE_OF)
MOST_DEPTHS: Final = 3
"""Deeper nodes count as those of the last one."""


class Survival:
    """Calibration of one kind of weights."""

    def __init__(self) -> None:
        self._accepted = np.zeros(NUM_BINS)
        self._verified = np.zeros(NUM_BINS)
        self._middles = BIN * (np.arange(NUM_BINS) + 0.5)
        self._claimed = np.exp(-self._middles)
        self._log_estimates: NDArray[np.float64] | None = None

    def of(self, log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] probabilities of acceptance for candidates of `log_weights` [n], at most 0."""
        return np.exp(np.interp(-log_weights, self._middles, self._estimated()))

    def least_weights(self, survivals: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] the log weights below which candidates are less likely to be accepted than `survivals` [n].

        -inf where none are, infinity where all are.
        """
        estimates, wanted = self._estimated(), np.log(survivals)
        # The last bin whose estimate is enough.
        last = np.searchsorted(-estimates, -wanted, side="right") - 1
        inner = np.clip(last, 0, NUM_BINS - 2)
        falls = estimates[inner] - estimates[inner + 1]
        parts = np.divide(estimates[inner] - wanted, falls, out=np.zeros(len(wanted)), where=falls > 0)
        weights = -(self._middles[inner] + BIN * parts) - ROUNDING
        weights[last < 0] = np.inf
        weights[last >= NUM_BINS - 1] = -np.inf
        return weights

    def observe(self, log_weights: NDArray[np.float64], accepted: NDArray[np.bool_]) -> None:
        """Takes in verified nodes, and which of them were on the accepted path."""
        self._log_estimates = None
        self._accepted *= FORGETTING
        self._verified *= FORGETTING
        bins = _bins(log_weights)
        self._verified += np.bincount(bins, minlength=NUM_BINS)
        self._accepted += np.bincount(bins, weights=accepted, minlength=NUM_BINS)

    def _estimated(self) -> NDArray[np.float64]:
        """[NUM_BINS] logarithms, never rising."""
        if self._log_estimates is None:
            estimates = (self._accepted + STRENGTH * self._claimed) / (self._verified + STRENGTH)
            self._log_estimates = np.log(np.minimum.accumulate(estimates))
        return self._log_estimates


def _bins(log_weights: NDArray[np.float64]) -> NDArray[np.int64]:
    bins: NDArray[np.int64] = np.minimum(-log_weights / BIN, NUM_BINS - 1).astype(np.int64)
    return bins


class Offspring:
    """The children that a node is expected to have: [NUM_CHILDREN] survivals as shares of its own, the largest first.

    Moving means, by the node's depth and by its own survival: a drafter that is sure of a token is surer of the next.
    """

    def __init__(self) -> None:
        self._shares = np.tile(FIRST_CHILDREN, (MOST_DEPTHS, len(SURE) + 1, 1))
        self._num_seen = np.zeros(self._shares.shape[:2], dtype=np.int64)

    def of(self, depths: NDArray[np.int64], survivals: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n, NUM_CHILDREN] for n nodes; FIRST_CHILDREN before a node like it was expanded."""
        found: NDArray[np.float64] = self._shares[_likeness(depths, survivals)]
        return found

    def observe(self, depth: int, survival: float, children: NDArray[np.float64]) -> None:
        """A node was expanded, and got children of these survivals, the largest first."""
        if survival <= 0:
            return
        likeness = min(depth, MOST_DEPTHS - 1), bisect_left(SURE_OF, survival)
        num_seen = self._num_seen[likeness] = self._num_seen[likeness] + 1
        shares = self._shares[likeness]
        gain = max(CHILDREN_GAIN, 1.0 / (num_seen + STRENGTH))
        shares *= 1.0 - gain
        found = children[:NUM_CHILDREN]
        shares[: len(found)] += np.minimum(found, survival) * (gain / survival)


def _likeness(depths: NDArray[np.int64], survivals: NDArray[np.float64]) -> tuple[Any, Any]:
    """Places in the tables."""
    return np.minimum(depths, MOST_DEPTHS - 1), np.searchsorted(SURE, survivals)
