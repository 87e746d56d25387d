"""Costs by width never fall: what is fitted, and what `LearnedCosts` makes of it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafters import curve as curve_module
from draftproof.drafters.costs import LearnedCosts
from draftproof.drafters.curve import DOUBT, FIRST_SLOPE, Curve
from draftproof.drafters.rising import Pool, rising

measured = st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 9)), min_size=1, max_size=7)


@given(measured)
def test_the_fit_is_the_best_of_all_cuts_into_pools_that_do_not_fall(given):
    """By enumeration: the least squares of a sequence that never falls is a cut into pools, each at its mean."""
    means, counts = np.array([mean for mean, _ in given]), np.array([count for _, count in given])
    pools_found = rising(given)
    found = np.array([pool.mean for pool in pools_found for _ in range(pool.num_neighbours)])
    assert (np.diff(found) >= -1e-12).all() and len(found) == len(given)
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(given) - 1):
        pools = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
        fitted = np.array([np.average(means[pools == pool], weights=counts[pools == pool]) for pool in pools])
        if (np.diff(fitted) >= -1e-12).all():
            best = min(best, float(counts @ (fitted - means) ** 2))
    assert float(counts @ (found - means) ** 2) == pytest.approx(best, abs=1e-9)
    assert sum(pool.num_measured for pool in pools_found) == counts.sum()


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
    # One knot for both, a quarter of the way from where most of it was measured: at 7 tokens.
    assert seconds[6] == pytest.approx((2.0 * 1.2**3) ** 0.25)
    assert seconds[3] == pytest.approx((seconds[0] + seconds[6]) / 2)
    assert [found.of_pass(width) for width in range(1, 9)] == pytest.approx(list(seconds))


def test_without_the_fit_an_unlucky_pass_closes_what_is_as_cheap(monkeypatch):
    monkeypatch.setattr(curve_module, "rising", lambda measured: [Pool(*own, 1) for own in measured])
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


def test_a_curve_is_a_line_through_the_middles_of_what_counts_as_one():
    """Widths 4 and 8 fall: they count as one at 7, since 8 was measured three times; 12 is dearer."""
    curve = Curve([1, 4, 8, 12], np.log([1.0, 2.0, 1.0, 2.0]).tolist(), [5, 1, 3, 4], 0.0)
    pool = 2.0**0.25
    assert curve.expected(7) == pytest.approx(pool) and curve.expected(1) == 1.0 and curve.expected(12) == 2.0
    assert curve.expected(4) == pytest.approx((1 + pool) / 2)
    assert curve.expected(8) == pytest.approx(pool + (2 - pool) / 5)
    assert curve.expected(14) == pytest.approx(2 + 2 * 1 / 11)
    widths = np.arange(1, 20)
    assert curve.hopeful_of(widths) == pytest.approx([curve.hopeful(int(width)) for width in widths])
    assert (np.diff(curve.hopeful_of(widths)) > 0).all()


def test_a_last_pool_goes_on_as_the_line_before_it():
    curve = Curve([1, 3, 5, 9], np.log([1.0, 1.2, 2.0, 1.2]).tolist(), [5, 5, 2, 2], 0.0)
    knot = (2.0 * 1.2) ** 0.5
    slope = (knot - 1.2) / 4
    assert curve.expected(7) == pytest.approx(knot) and curve.expected(9) == pytest.approx(knot + 2 * slope)
    steepest = max(FIRST_SLOPE, (knot + 2 * slope - 1) / 8)
    assert curve.expected(11) == pytest.approx(knot + 2 * slope + 2 * steepest)
    flat = Curve([1, 9], [0.0, 0.0], [3, 3], 0.0)
    assert flat.expected(5) == 1.0 and flat.expected(10) == pytest.approx(1 + FIRST_SLOPE)


def test_what_was_seldom_measured_is_hopefully_cheaper():
    curve = Curve([1, 5, 9], np.log([1.0, 1.5, 2.0]).tolist(), [50, 100, 4], 0.04)
    assert curve.hopeful(1) == 1.0
    assert curve.hopeful(5) == pytest.approx(1.5 * np.exp(-DOUBT * 0.02))
    assert curve.hopeful(9) == pytest.approx(2.0 * np.exp(-DOUBT * 0.1))
