"""Costs by width never fall: what is fitted, and what `LearnedCosts` makes of it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafters import costs as costs_module
from draftproof.drafters.costs import LearnedCosts
from draftproof.drafters.rising import rising

measured = st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 9)), min_size=1, max_size=7)


@given(measured)
def test_the_fit_is_the_best_of_all_cuts_into_pools_that_do_not_fall(given):
    """By enumeration: the least squares of a sequence that never falls is a cut into pools, each at its mean."""
    means, counts = np.array([mean for mean, _ in given]), np.array([count for _, count in given])
    found = np.array([mean for mean, _ in rising(given)])
    assert (np.diff(found) >= -1e-12).all() and len(found) == len(given)
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(given) - 1):
        pools = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
        fitted = np.array([np.average(means[pools == pool], weights=counts[pools == pool]) for pool in pools])
        if (np.diff(fitted) >= -1e-12).all():
            best = min(best, float(counts @ (fitted - means) ** 2))
    assert float(counts @ (found - means) ** 2) == pytest.approx(best, abs=1e-9)
    assert all(total >= count for (_, total), (_, count) in zip(rising(given), given, strict=True))


def measured_costs():
    """Plain passes of 1 s; one of 4 tokens at a bad moment, and ten of 8 in a row, which took less: three tell."""
    found = LearnedCosts()
    for width, seconds in [*[(1, 1.0)] * 3, (4, 2.0), *[(8, 1.2)] * 10]:
        found.observe_pass(width, seconds)
    return found


def test_a_pass_is_not_taken_to_cost_less_than_a_narrower_one():
    found = measured_costs()
    seconds = found.of_passes(8)
    assert (np.diff(seconds) >= -1e-9).all()
    assert seconds[3] == pytest.approx(seconds[7], rel=1e-6)
    assert seconds[7] == pytest.approx((2.0 * 1.2**3) ** 0.25)
    assert [found.of_pass(width) for width in range(1, 9)] == pytest.approx(list(seconds))


def test_without_the_fit_an_unlucky_pass_closes_what_is_as_cheap(monkeypatch):
    monkeypatch.setattr(costs_module, "rising", list)
    assert measured_costs().of_pass(4) > 1.5 * measured_costs().of_pass(8)


def test_a_first_mistake_is_mended_by_few_runs_of_a_width():
    """Of passes in runs only the first of each tells of shapes: so many count, not as many as there were."""
    costs = LearnedCosts()
    for width, seconds in [(1, 0.010)] * 3 + [(4, 0.010)] * 3 + [(6, 0.014)] * 3:
        costs.observe_pass(width, seconds)
    first = costs.of_pass(6) / costs.of_pass(4) - 1.09
    for _ in range(9):
        for width, seconds in [(4, 0.010)] * 20 + [(6, 0.0109)] * 4:
            costs.observe_pass(width, seconds)
    left = costs.of_pass(6) / costs.of_pass(4) - 1.09
    assert first > 0.25 and 0 < left < 0.3 * first
