"""T13 and the 24-bit trap: tail mass at logit gaps 12 to 22, computed, not sampled.

One token stands `gap` above 151,935 equal others. The tail wins iff some E_i / p_i is below the
top's. With b-bit centred uniforms each E_i takes values on a grid, so
P(tail wins) = E over the top's noise of 1 - (1 - F(x))^n, F the grid's distribution function.
"""

import numpy as np
import pytest

from draftproof.race import exponential

NUM_TAIL = 151_935


def tail_mass(gap, bits, centre=0.5):
    """P(a tail token wins) under `bits`-bit uniforms; the top's noise is averaged over a fine grid of quantiles."""
    quantiles = (np.arange(400_000) + 0.5) / 400_000
    bound = -np.log1p(-quantiles) * np.exp(-gap)
    grid = -np.expm1(-bound) * 2.0**bits - centre
    num_below = np.clip(np.ceil(grid), 0, 2.0**bits)
    return float(np.mean(-np.expm1(NUM_TAIL * np.log1p(-num_below / 2.0**bits))))


def exact_tail_mass(gap):
    weight = NUM_TAIL * np.exp(-gap)
    return weight / (1 + weight)


@pytest.mark.parametrize(("gap", "bound"), [(12, 1e-6), (14, 1e-6), (16, 1e-5), (18, 1e-4), (20, 1e-3), (22, 0.03)])
def test_32_bits_keep_the_tail(gap, bound):
    assert abs(tail_mass(gap, 32) / exact_tail_mass(gap) - 1) < bound


def test_24_bits_lose_it():
    """The mutant after vLLM PR 51367: 44 % of the tail is gone at gap 18 and all of it at gap 20."""
    assert tail_mass(18, 24) / exact_tail_mass(18) == pytest.approx(0.56, abs=0.01)
    assert tail_mass(20, 24) == 0


def test_the_grid_is_the_one_that_races_run_on():
    """F above counts words k with (k + 1/2) / 2^32 below 1 - e^-x; `exponential` must order them so."""
    for integer in (0, 1, 5, 1000, 2**31, 2**32 - 2):
        low, high = exponential(integer), exponential(integer + 1)
        middle = -np.log1p(-(integer + 1) / 2**32)
        assert low < middle < high
