"""Detection power against dose: which doses there are, and which counts as seen."""

from __future__ import annotations

from draftproof.audit.doses import Dose, dose_curve, own_bias, smallest_seen
from draftproof.audit.mutants.sampler import ExactSampler
from draftproof.audit.mutants.verifiers import GreedyBonus, ResidualArgmax


def row(name: str, total_variation: float, num_caught: int) -> Dose:
    return Dose(name, total_variation, 0.1, 1000, 10, num_caught, None)


def test_the_exact_sampler_has_no_bias_and_no_doses() -> None:
    assert own_bias(ExactSampler, 1, 3000) == 0
    assert dose_curve(ExactSampler, (0.1,), num_tokens=1000, num_runs=1, seed=1, num_bias_requests=3000) == []


def test_a_dose_that_a_mutant_does_not_reach_is_left_out() -> None:
    bias = own_bias(GreedyBonus, 1, 3000)
    asked = (2 * bias, bias / 2)
    [found] = dose_curve(GreedyBonus, asked, num_tokens=4000, num_runs=1, seed=1, num_bias_requests=3000)
    assert found.total_variation == bias / 2 and abs(found.dose - 0.5) < 1e-9


def test_power_falls_with_the_dose() -> None:
    doses = (own_bias(ResidualArgmax, 2, 3000), 1e-4)
    large, small = dose_curve(ResidualArgmax, doses, num_tokens=20_000, num_runs=5, seed=2, num_bias_requests=3000)
    assert large.power == 1 and large.median_tokens is not None and large.median_tokens <= 20_000
    assert small.power == 0 and small.median_tokens is None


def test_the_smallest_dose_seen_is_the_last_before_the_first_that_is_not() -> None:
    rows = [row("a", 0.1, 10), row("a", 0.05, 9), row("a", 0.02, 8), row("a", 0.01, 10), row("b", 0.1, 8)]
    assert smallest_seen(rows) == {"a": 0.05, "b": None}
    assert smallest_seen(list(reversed(rows))) == {"a": 0.05, "b": None}
