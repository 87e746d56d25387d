"""Statistical tests through the production noise: seeded, one run each, with their error budgets."""

from math import log, sqrt
from typing import Any

import numpy as np
import pytest

from draftproof.core import Draft, Key, Number, Purpose, Weights
from draftproof.noise import KeyedNoise, philox4x32, race
from draftproof.verify import get_verifier
from draftproof.verify.mutants.base import forged
from tests.verify.helpers import floats

SEED = 2024
NUM_TRIALS = 50_000
TARGET_LAW, DRAFT_LAW = floats(0.3, 0.4, 0.2, 0.1), floats(0.5, 0.2, 0.2, 0.1)
# Hoeffding for each of 4 tokens, two-sided: 8 exp(-2 N d^2) = 1e-6 gives d = 0.0126.
BOUND = sqrt(log(8 / 1e-6) / (2 * NUM_TRIALS))


class ManyPositions:
    """KeyedNoise(SEED) at NUM_TRIALS positions and up to four tokens, with the words of all positions made at once."""

    def __init__(self) -> None:
        positions = np.arange(NUM_TRIALS)
        self._words = {
            purpose: np.stack(philox4x32((0, positions, 0, purpose << 24), (SEED, 0)), axis=1).astype(np.uint32)
            for purpose in (Purpose.DRAFT, Purpose.COIN, Purpose.RESIDUAL, Purpose.BONUS)
        }

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        return self.uniform(key) * denominator < numerator

    def uniform(self, key: Key) -> float:
        high, low, _, _ = self._words[key.purpose][key.position].tolist()
        return float(((high << 20 | low >> 12) + 0.5) * 2.0**-52)

    def choice(self, key: Key, weights: Weights, token_ids: Any = None) -> int:
        return race(self._words[key.purpose][key.position], weights)


@pytest.fixture(scope="module")
def noise() -> ManyPositions:
    return ManyPositions()


def test_the_words_are_those_of_keyed_noise(noise: ManyPositions) -> None:
    keyed = KeyedNoise(SEED)
    for position in range(0, NUM_TRIALS, 997):
        assert noise.uniform(Key(Purpose.COIN, position)) == keyed.uniform(Key(Purpose.COIN, position))
        for purpose in (Purpose.DRAFT, Purpose.RESIDUAL, Purpose.BONUS):
            key = Key(purpose, position)
            assert noise.choice(key, TARGET_LAW.probs) == keyed.choice(key, TARGET_LAW.probs)


def _deviation(noise: ManyPositions, *, argmax_draft: bool) -> float:
    verifier, rows, counts = get_verifier("rejection"), [TARGET_LAW, TARGET_LAW], np.zeros(4)
    best = DRAFT_LAW.argmax()
    for trial in range(NUM_TRIALS):
        draft = Draft.empty(trial)
        draft = (
            forged(draft, token_ids=[best], laws=[DRAFT_LAW], length=1)
            if argmax_draft
            else draft.draw(DRAFT_LAW, noise)
        )
        counts[verifier.verify(draft, rows, noise).token_ids[0]] += 1
    return float(np.abs(counts / NUM_TRIALS - TARGET_LAW.probs).max())


def test_drafts_drawn_from_their_own_law_keep_the_targets_law(noise: ManyPositions) -> None:
    """Error budget 1e-6."""
    assert _deviation(noise, argmax_draft=False) <= BOUND < 0.013


def test_argmax_drafts_with_a_softmax_law_do_not(noise: ManyPositions) -> None:
    """T01: the deviation is .3; less than .25 has probability below 1e-6 by the same bound."""
    assert _deviation(noise, argmax_draft=True) > 0.25 > 10 * BOUND
