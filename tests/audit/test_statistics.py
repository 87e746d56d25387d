"""The statistics under the null hypothesis, their bounds by hand, and their power.

Error budget: everything is seeded. Under the null a p-value below 1e-4 in one of 4,000 runs' families has an expected
count of 0.4; the limit is 4, exceeded with probability below 1e-4. benchmarks/audit_nulls.py has the run of 100,000.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.audit.battery import ALL, Layout, adjusted_p, hypotheses, num_hypotheses
from draftproof.audit.scores import RARE, score_rows
from draftproof.audit.statistics import bound, lags, pit, sums, tails, twosample
from draftproof.audit.statistics.eprocess import EProcess
from draftproof.audit.statistics.holm import adjusted, smallest_adjusted
from tests.audit.toys import EIGHT, EIGHT_DRAFT

NUM_RUNS, NUM_TOKENS = 4000, 240


@pytest.fixture(scope="module")
def null_scores():
    """[4000, 240] tokens drawn from their own laws."""
    random = np.random.default_rng(11)
    contexts = random.integers(0, 8, (NUM_RUNS, NUM_TOKENS))
    probs = EIGHT[contexts]
    token_ids = (random.random((NUM_RUNS, NUM_TOKENS, 1)) > probs.cumsum(-1)).sum(-1).clip(0, 7)
    return score_rows(
        probs,
        token_ids,
        random,
        draft_probs=EIGHT_DRAFT[contexts],
        request=np.repeat(np.arange(NUM_TOKENS // 12), 12),
        position=np.tile(np.arange(12), NUM_TOKENS // 12),
        pass_offset=np.tile(np.arange(4), NUM_TOKENS // 4),
    )


def test_null_runs_raise_no_more_alarms_than_the_rate(null_scores) -> None:
    found = hypotheses(null_scores, Layout(knows_draft=True, by_offset=True))
    p_values = np.stack([h.p_value for h in found], -1)
    weights = np.array([h.weight for h in found])
    smallest = smallest_adjusted(p_values, weights)
    assert (smallest <= 1e-4).sum() <= 4
    # P(more than 60 of 4,000 at 1 %) < 1e-3, expected at most 40.
    assert (smallest <= 0.01).sum() <= 60


def test_null_p_values_are_uniform_where_the_tests_are_exact(null_scores) -> None:
    """Shares below 5 and 50 per cent, each within 4.5 standard deviations (two-sided 7e-6, 12 checks)."""
    found = {h.name: h.p_value for h in hypotheses(null_scores, Layout(knows_draft=True))}
    for name in ("pit", "pit by id", "pit by p/q", "argmax p", "q > p", "argmax q"):
        for level in (0.05, 0.5):
            share = float((found[f"{name}, {ALL}"] <= level).mean())
            assert abs(share - level) <= 4.5 * math.sqrt(level * (1 - level) / NUM_RUNS) + 0.01, (name, level, share)


def test_evidence_stays_below_its_level_whenever_one_looks(null_scores) -> None:
    """Ville: P(peak >= 20) <= 0.05; 4,000 runs looked at 20 times, allowed 200 + 4.5 standard deviations of 14."""
    evidence = EProcess(knows_draft=True)
    for start in range(0, NUM_TOKENS, 12):
        evidence.update(null_scores.where((np.arange(NUM_TOKENS) >= start) & (np.arange(NUM_TOKENS) < start + 12)))
    assert (evidence.peak_log_e >= math.log(20)).sum() <= 262
    assert (evidence.peak_log_e >= math.log(1e4)).sum() <= 4


def test_evidence_does_not_depend_on_how_tokens_are_batched(null_scores) -> None:
    whole, parts = EProcess(knows_draft=True), EProcess(knows_draft=True)
    whole.update(null_scores)
    places = np.arange(NUM_TOKENS)
    for start in range(0, NUM_TOKENS, 60):
        parts.update(null_scores.where((places >= start) & (places < start + 60)))
    np.testing.assert_allclose(whole.log_e(), parts.log_e(), rtol=0, atol=1e-9)
    assert (parts.peak_log_e >= parts.log_e()).all()


def test_wealth_has_mean_one_by_enumeration() -> None:
    """Two tokens over a law of three: every path's wealth, weighted by its probability, sums to 1."""
    law = np.array([0.6, 0.3, 0.1])
    draft = np.array([0.2, 0.3, 0.5])
    mean = 0.0
    for first in range(3):
        for second in range(3):
            # The positions' uniform part is averaged over a fine grid: their bins are then hit in exact proportion.
            for spread in ((0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)):
                scores = score_rows(
                    np.stack([law, law]),
                    np.array([first, second]),
                    _Fixed(spread),
                    draft_probs=np.stack([draft, draft]),
                )
                evidence = EProcess(knows_draft=True)
                evidence._bet("argmax p", scores.is_top, scores.top_prob)
                evidence._bet("q > p", scores.is_gain, scores.gain_prob)
                mean += law[first] * law[second] * 0.25 * math.exp(float(evidence.log_e()))
    assert mean == pytest.approx(1.0, abs=1e-12)


class _Fixed:
    def __init__(self, values: tuple[float, ...]) -> None:
        self._values = np.array(values)

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._values.reshape(shape)


def test_score_rows_by_hand() -> None:
    probs = np.array([[0.5, 0.3, 0.2, 0.0], [0.25, 0.25, 0.25, 0.25]])
    draft = np.array([[0.1, 0.3, 0.6, 0.0], [0.7, 0.1, 0.1, 0.1]])
    scores = score_rows(probs, np.array([2, 1]), _Fixed((0.5, 0.5)), draft_probs=draft)
    assert scores.prob.tolist() == [0.2, 0.25]
    np.testing.assert_allclose(scores.pit, [0.8 + 0.1, 0.25 + 0.125])
    np.testing.assert_allclose(scores.id_pit, [0.8 + 0.1, 0.25 + 0.125])
    # Ratios 5, 1, 1/3 in the first row; 0.36, 2.5, 2.5, 2.5 in the second, ids breaking ties.
    np.testing.assert_allclose(scores.ratio_pit, [0.8 + 0.1, 0.0 + 0.125])
    np.testing.assert_allclose(scores.gain_prob, [0.2, 0.25])
    assert scores.is_gain.tolist() == [True, False]
    assert scores.is_top.tolist() == [False, False]
    entropy = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2))
    np.testing.assert_allclose(scores.surprise, [-math.log(0.2) - entropy, 0.0], atol=1e-12)
    np.testing.assert_allclose(scores.surprise_variance[1], 0.0, atol=1e-12)


def test_a_rare_token_is_in_the_tail_and_its_surprise_is_cut() -> None:
    probs = np.array([[1 - 1e-9, 1e-9]])
    scores = score_rows(probs, np.array([1]), _Fixed((0.5,)))
    assert scores.is_tail[0] and scores.tail_prob[0] == pytest.approx(1e-9)
    assert scores.surprise[0] == pytest.approx(12.0, abs=1e-6)
    assert RARE == 1e-4


def test_holm_by_hand() -> None:
    # Equal weights: 3 * .01, then max(.03, 2 * .02), then max(.04, .03).
    np.testing.assert_allclose(adjusted([0.02, 0.01, 0.03], [1, 1, 1]), [0.04, 0.03, 0.04])
    # Weight .5 and .25, .25: .001/.5 * 1 = .002; .001/.25 * .5 = .002; then max(.002, 1).
    np.testing.assert_allclose(adjusted([0.001, 0.001, 1.0], [0.5, 0.25, 0.25]), [0.002, 0.002, 1.0])


def test_small_variances_use_the_inequality() -> None:
    """Ten coins of probability 1e-3, one success: P >= 0.00996 exactly, and the bound may not be below it."""
    total, variance = np.array(1 - 0.01), np.array(10 * 1e-3 * 0.999)
    p_value = float(tails.martingale_p(total, variance, variance))
    assert 0.00996 <= p_value <= 0.2


def test_a_skewed_sum_is_not_called_too_often() -> None:
    """Sums of 3,000 indicators of probability .01: exact binomial tails against the corrected p-values.

    Where the corrected p-value is p, the true two-sided tail is at most 1.25 p, down to 1e-6.
    """
    from scipy.stats import binom

    number, probability = 3000, 0.01
    variance = number * probability * (1 - probability)
    third = variance * (1 - 2 * probability)
    for count in range(40, 66):
        total = count - number * probability
        p_value = float(tails.martingale_p(np.array(total), np.array(variance), np.array(third)))
        upper = float(binom.sf(count - 1, number, probability))
        lower = float(binom.cdf(math.floor(number * probability - total), number, probability))
        assert upper + lower <= 1.25 * p_value, (count, p_value, upper + lower)


def test_bound_covers_a_dependent_law() -> None:
    """A process whose bias depends on its own past: the bound holds in 500 runs (alpha .01: P(> 18) < 1e-5)."""
    random = np.random.default_rng(5)
    uniforms, means = np.empty((500, 400)), np.zeros((500, 8))
    last = np.full(500, 0.5)
    for index in range(400):
        # Three quarters of the mass go to the half of [0, 1] where the last one was.
        half = (last >= 0.5).astype(int)
        stays = random.random(500) < 0.75
        last = uniforms[:, index] = (np.where(stays, half, 1 - half) + random.random(500)) / 2
        in_upper = np.arange(8) >= 4
        means += np.where(in_upper == half[:, None], 3 / 16, 1 / 16)
    true = np.abs(means / 400 - 1 / 8).sum(1) / 2
    misses = sum(bound.upper_bound(row, 0.01)[1] < deviation for row, deviation in zip(uniforms, true, strict=True))
    assert misses <= 18


def test_lags_see_repeats_and_nothing_across_requests() -> None:
    random = np.random.default_rng(3)
    uniforms = np.repeat(random.random(500), 2)
    probs = np.tile([0.5, 0.5], (1000, 1))
    scores = score_rows(
        probs,
        (uniforms >= 0.5).astype(int),
        random,
        request=np.repeat(np.arange(100), 10),
        position=np.tile(np.arange(10), 100),
    )
    assert lags.along_request(scores)[1] < 1e-6
    assert lags.across_requests(scores)[1] > 1e-3
    copied = score_rows(
        probs,
        np.tile((random.random(10) > 0.5).astype(int), 100),
        random,
        request=np.repeat(np.arange(100), 10),
        position=np.tile(np.arange(10), 100),
    )
    assert lags.across_requests(copied)[1] < 1e-6


def test_rounding_allowance_only_raises_p_values() -> None:
    random = np.random.default_rng(9)
    uniforms = random.random(5000) ** 1.03
    assert pit.chi_square(uniforms, shift=0.0)[1] < pit.chi_square(uniforms, shift=0.01)[1]
    is_in = random.random(5000) < 0.55
    tight = sums.set_sum(is_in, np.full(5000, 0.5))
    loose = sums.set_sum(is_in, np.full(5000, 0.5), shift=0.02)
    assert tight.p_value < 1e-6 < loose.p_value


def test_too_few_tokens_are_no_test() -> None:
    assert pit.num_bins_for(99) == 0 and pit.num_bins_for(100) == 2 and pit.num_bins_for(1 << 20) == 16
    assert float(pit.chi_square(np.zeros(60))[1]) == 1.0


def test_the_number_of_hypotheses_is_known_before(null_scores) -> None:
    for layout in (Layout(), Layout(knows_draft=True, by_offset=True)):
        found = hypotheses(null_scores, layout)
        assert len(found) == num_hypotheses(layout)
        assert sum(h.weight for h in found) == pytest.approx(1.0)
        assert len(adjusted_p([_one_run(h) for h in found])) == len(found)


def _one_run(hypothesis):
    from dataclasses import replace

    return replace(hypothesis, p_value=hypothesis.p_value[0])


def test_permutation_tests_are_level_and_have_power() -> None:
    """60 null comparisons at 5 per cent: P(more than 12) < 2e-5.

    A bias of .2 in four prompts of 100 outputs is seen.
    """
    random = np.random.default_rng(21)

    def outputs(probability: float) -> list[list[tuple[int, ...]]]:
        return [[tuple(map(int, random.random(3) < probability)) for _ in range(100)] for _ in range(4)]

    alarms = 0
    for _ in range(20):
        first, second = outputs(0.5), outputs(0.5)
        largest_p, total_p, _ = twosample.prefix_tests(first, second, 2, random, 400)
        mmd_p, _ = twosample.mmd_test(first, second, 3, random, 400)
        alarms += sum(p <= 0.05 for p in (largest_p, total_p, mmd_p))
    assert alarms <= 12
    assert twosample.prefix_tests(outputs(0.5), outputs(0.7), 1, random, 4000)[1] < 1e-3
    assert twosample.mmd_test(outputs(0.5), outputs(0.7), 3, random, 4000)[0] < 1e-3
