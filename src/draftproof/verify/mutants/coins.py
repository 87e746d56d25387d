"""Mutants of the accept coin and of the search that turns a uniform number into a token.

A real generator has 2^24 or 2^32 steps; here it has 4, so that what happens at its ends has a probability that shows.
The instances' probabilities are multiples of a quarter, for which the right rule is exact on such a grid.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from draftproof.core import Key, Law, Noise, Number, Weights
from draftproof.verify.mutants.base import Mutant, constant, enumerated
from draftproof.verify.mutants.twins import RejectionTwin
from draftproof.verify.proposals import Fixed

NUM_STEPS: Final = 4
_STEPS: Final[Weights] = np.array([Fraction(1)] * NUM_STEPS, dtype=object)


def uniform_from_zero(noise: Noise, key: Key) -> Fraction:
    """k / 4: what a generator over [0, 1) gives; 0 is one of its values."""
    return Fraction(noise.choice(key, _STEPS), NUM_STEPS)


def uniform_that_rounds(noise: Noise, key: Key) -> Fraction:
    """(k + 1) / 4: the upper end rounds to 1, as a 32-bit hash over 2^32 does in float32."""
    return Fraction(noise.choice(key, _STEPS) + 1, NUM_STEPS)


def uniform_centred(noise: Noise, key: Key) -> Fraction:
    """(k + 1/2) / 4: strictly between 0 and 1."""
    return Fraction(2 * noise.choice(key, _STEPS) + 1, 2 * NUM_STEPS)


def _accept_up_to_ratio(noise: Noise, key: Key, target_prob: Number, draft_prob: Number) -> bool:
    return bool(uniform_from_zero(noise, key) <= target_prob / draft_prob)


def _accept_below_ratio(noise: Noise, key: Key, target_prob: Number, draft_prob: Number) -> bool:
    return bool(uniform_from_zero(noise, key) * draft_prob < target_prob)


def _search(law: Law, uniform: Fraction) -> int:
    """The first token whose cumulative probability is above `uniform`; the last of the vocabulary if there is none."""
    weights, _ = law.weights()
    total = Fraction(0)
    for token_id, weight in enumerate(weights):
        total += weight
        if total > uniform:
            return token_id
    return len(weights) - 1


def _bonus_by_rounded_search(law: Law, noise: Noise, key: Key) -> int:
    return _search(law, uniform_that_rounds(noise, key))


def _bonus_by_centred_search(law: Law, noise: Noise, key: Key) -> int:
    return _search(law, uniform_centred(noise, key))


_EXCLUDED: Final = constant("0 0.5 0.5")
_DRAFTS_EXCLUDED: Final = Fixed((1,), (0,))
_QUARTERS: Final = constant("0.5 0.5 0 0")

_NO_DRAFT: Final = Fixed((), ())

MUTANTS: Final = (
    Mutant(
        "u <= p/q accepts probability 0",
        "T11: sgl-project/sglang#35771, pytorch#16706",
        enumerated(RejectionTwin(_EXCLUDED, _DRAFTS_EXCLUDED, accept=_accept_up_to_ratio), _EXCLUDED),
        enumerated(RejectionTwin(_EXCLUDED, _DRAFTS_EXCLUDED, accept=_accept_below_ratio), _EXCLUDED),
    ),
    Mutant(
        "coin rounds to 1 in the token search",
        "T12: sgl-project/sglang#30822",
        enumerated(RejectionTwin(_QUARTERS, _NO_DRAFT, bonus=_bonus_by_rounded_search), _QUARTERS),
        enumerated(RejectionTwin(_QUARTERS, _NO_DRAFT, bonus=_bonus_by_centred_search), _QUARTERS),
    ),
)
