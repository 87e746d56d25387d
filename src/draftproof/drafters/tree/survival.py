"""How likely a candidate's weight makes it that the target gets there: calibrated on committed verdicts.

Rule: verified nodes are sorted into bins of their log weight, BIN wide; a bin's estimate is (accepted + STRENGTH *
weight) / (verified + STRENGTH), with forgetting, weight being exp of the bin's middle. Estimates never grow from a
heavier bin to a lighter one: those that would are lowered to the one before.
Before anything was verified a weight is taken at its word, which is what it claims to be.
`Yields` says from this what another round of expansions is worth.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

BIN: Final = 0.5
NUM_BINS: Final = 32
STRENGTH: Final = 6.0
FORGETTING: Final = 0.998
FIRST_YIELD: Final = 0.8
YIELD_GAIN: Final = 0.05


class Survival:
    """Calibration of one kind of weights."""

    def __init__(self) -> None:
        self._accepted = np.zeros(NUM_BINS)
        self._verified = np.zeros(NUM_BINS)
        self._claimed = np.exp(-BIN * (np.arange(NUM_BINS) + 0.5))

    def of(self, log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n] probabilities of acceptance for candidates of `log_weights` [n], at most 0."""
        estimates = (self._accepted + STRENGTH * self._claimed) / (self._verified + STRENGTH)
        found: NDArray[np.float64] = np.minimum.accumulate(estimates)[_bins(log_weights)]
        return found

    def observe(self, log_weights: NDArray[np.float64], accepted: NDArray[np.bool_]) -> None:
        """Takes in verified nodes, and which of them were on the accepted path."""
        self._accepted *= FORGETTING
        self._verified *= FORGETTING
        bins = _bins(log_weights)
        self._verified += np.bincount(bins, minlength=NUM_BINS)
        self._accepted += np.bincount(bins, weights=accepted, minlength=NUM_BINS)


def _bins(log_weights: NDArray[np.float64]) -> NDArray[np.int64]:
    bins: NDArray[np.int64] = np.minimum(-log_weights / BIN, NUM_BINS - 1).astype(np.int64)
    return bins


class Yields:
    """What a round of expansions adds to a tree's value, as a share of the survival of the nodes that it expands.

    By the round's number; one that was never run is taken to yield what the one before it does. Moving means.
    """

    def __init__(self) -> None:
        self._shares: list[float] = []

    def of(self, round_index: int) -> float:
        """A share, FIRST_YIELD before any round was run."""
        known = self._shares[: round_index + 1]
        return known[-1] if known else FIRST_YIELD

    def observe(self, round_index: int, added: float, expanded: float) -> None:
        """A round added `added` to the value, expanding nodes whose survivals have the sum `expanded`."""
        if expanded <= 0:
            return
        while len(self._shares) <= round_index:
            self._shares.append(self.of(round_index))
        self._shares[round_index] += YIELD_GAIN * (added / expanded - self._shares[round_index])
