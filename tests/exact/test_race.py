"""Exact laws of exponential races with a shared field, against properties and against the production race."""

from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.noise import philox4x32, race
from draftproof.verify.mutants.base import row
from draftproof.verify.race import match_probability, race_joint

WEIGHTS = st.lists(st.integers(0, 6).map(Fraction), min_size=4, max_size=4).filter(any)


@given(first=WEIGHTS, second=WEIGHTS)
def test_joint_has_the_right_marginals(first: list[Fraction], second: list[Fraction]) -> None:
    joint = race_joint(first, second)
    assert sum(joint.values()) == 1
    for token in range(4):
        assert sum(p for (i, _), p in joint.items() if i == token) == first[token] / sum(first)
        assert sum(p for (_, j), p in joint.items() if j == token) == second[token] / sum(second)
    assert match_probability(first, second) == sum(p for (i, j), p in joint.items() if i == j)


@given(weights=WEIGHTS)
def test_equal_laws_always_match(weights: list[Fraction]) -> None:
    assert match_probability(weights, [3 * weight for weight in weights]) == 1


@given(first=WEIGHTS, second=WEIGHTS)
def test_match_probability_is_within_its_bounds(first: list[Fraction], second: list[Fraction]) -> None:
    """(1 - TV) / (1 + TV) <= P(match) <= 1 - TV."""
    p, q = [w / sum(first) for w in first], [w / sum(second) for w in second]
    distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert (1 - distance) / (1 + distance) <= match_probability(p, q) <= 1 - distance


def test_t08_by_hand() -> None:
    """P(replacement 1 | draft 0) = 1 / (3 * 1.45) for the residual (0, .2, .4) of T08."""
    joint = race_joint(row("0.70 0.25 0.05"), row("0 0.20 0.40"))
    assert joint[0, 1] / (joint[0, 1] + joint[0, 2]) == Fraction(1) / (3 * Fraction("1.45"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.5 0.3 0.15 0.05", "0.1 0.2 0.3 0.4"),
        ("0.7 0.3 0 0", "0 0.2 0.5 0.3"),
        ("1/4 1/4 1/4 1/4", "0.1 0.1 0.2 0.6"),
    ],
)
def test_the_production_race_follows_the_joint_law(first: str, second: str) -> None:
    """20,000 fields of the production noise. Hoeffding over 16 cells, budget 1e-6: 32 exp(-2 N d^2) = 1e-6."""
    num_fields = 20_000
    bound = sqrt(log(32 / 1e-6) / (2 * num_fields))
    words = np.stack(philox4x32((0, np.arange(num_fields), 0, 0), (77, 0)), axis=1).astype(np.uint32)
    counts = np.zeros((4, 4))
    weights = [np.array([float(value) for value in row(numbers)]) for numbers in (first, second)]
    for field in words:
        counts[race(field, weights[0]), race(field, weights[1])] += 1
    joint = race_joint(row(first), row(second))
    expected = np.array([[float(joint.get((i, j), Fraction(0))) for j in range(4)] for i in range(4)])
    assert np.abs(counts / num_fields - expected).max() < bound < 0.025
