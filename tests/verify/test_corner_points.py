"""The corner points of a verifier: certain drafts, impossible drafts, patterns, ids outside the vocabulary."""

import numpy as np
import pytest

from draftproof.core import ROOT, Draft, Outcome, PointMass, Sparse
from draftproof.noise import KeyedNoise
from draftproof.verify import get_verifier, verify_batch
from draftproof.verify.residual import residual
from tests.verify.helpers import Scripted, binomial_interval, drawn, exact, floats

SAMPLING = ("keyed", "match", "rejection", "block")


@pytest.mark.parametrize("name", (*SAMPLING, "greedy"))
def test_mass_one_on_each_draft_accepts_all_and_adds_the_bonus(name: str) -> None:
    rows = [floats(0, 1, 0), floats(0, 0, 1), floats(1, 0, 0), PointMass(1)]
    verdict = get_verifier(name).verify(Draft.of_token_ids(4, [1, 2, 0]), rows, KeyedNoise(3), telemetry=True)
    assert verdict.token_ids == (1, 2, 0, 1)
    assert (verdict.num_accepted, verdict.num_positions_agreeing, verdict.outcome) == (3, 3, Outcome.BONUS)


@pytest.mark.parametrize("name", SAMPLING)
def test_zero_mass_on_the_draft_recovers_the_only_token(name: str) -> None:
    for seed in range(50):
        noise = KeyedNoise(seed)
        draft = Draft.of_token_ids(4, [0, 2])
        verdict = get_verifier(name).verify(draft, [floats(0, 1, 0)] * 3, noise)
        assert (verdict.token_ids, verdict.num_accepted, verdict.outcome) == ((1,), 0, Outcome.RECOVERED)


@pytest.mark.parametrize("name", ("rejection", "block"))
def test_zero_mass_with_a_spread_draft_law(name: str) -> None:
    """T16: disjoint supports. Acceptance 0, and the replacement has the target's law: its weights are the target's."""
    noise = Scripted(uniforms={0: 0})
    verdict = get_verifier(name).verify(drawn(0, exact("0.5 0.5 0 0"), [1]), [exact("0 0 0.7 0.3")] * 2, noise)
    assert verdict.num_accepted == 0
    assert noise.weights == [list(exact("0 0 0.7 0.3").probs)]


def test_yes_no_yes_commits_one_and_the_replacement() -> None:
    """T20g. Coins .1, .9, .1 against ratios .8, .8, .8."""
    draft = drawn(0, exact("0.5 0.5"), [0, 0, 0])
    noise = Scripted(uniforms={0: 0.1, 1: 0.9, 2: 0.1})
    verdict = get_verifier("rejection").verify(draft, [exact("0.4 0.6")] * 4, noise, telemetry=True)
    assert verdict.token_ids == (0, 1)
    assert (verdict.num_accepted, verdict.num_positions_agreeing) == (1, 2)


@pytest.mark.parametrize("name", ("keyed", "match"))
def test_yes_no_yes_under_the_walk(name: str) -> None:
    rows = [floats(1, 0), floats(0, 1), floats(1, 0), floats(0, 1)]
    verdict = get_verifier(name).verify(Draft.of_token_ids(0, [0, 0, 0]), rows, KeyedNoise(1), telemetry=True)
    assert (verdict.token_ids, verdict.num_accepted, verdict.num_positions_agreeing) == ((0, 1), 1, 2)


@pytest.mark.parametrize("name", SAMPLING)
def test_512_rows_accept_at_the_drafts_probability(name: str) -> None:
    """Point-mass drafts of probability .7: acceptances are Binomial(512, .7). Error budget 1e-6 per verifier."""
    draft, rows = Draft.of_token_ids(9, [1]), [floats(0.2, 0.7, 0.1)] * 2
    noises = [KeyedNoise(seed) for seed in range(512)]
    batch = verify_batch(get_verifier(name), [draft] * 512, [rows] * 512, noises)
    low, high = binomial_interval(512, "0.7", 1e-6)
    assert low <= int(batch.num_accepted.sum()) <= high
    assert 300 < low < 0.7 * 512 < high < 412


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("token_id", (3, 4, 10**9))
def test_ids_outside_the_targets_vocabulary_are_never_accepted(name: str, token_id: int) -> None:
    """T64: the drafter's vocabulary is wider than the target's."""
    for rows in ([floats(0.2, 0.5, 0.3)] * 2, [Sparse(np.array([0, 2]), np.array([0.4, 0.6]))] * 2, [PointMass(1)] * 2):
        for seed in range(20):
            verdict = get_verifier(name).verify(Draft.of_token_ids(0, [token_id]), rows, KeyedNoise(seed))
            assert verdict.num_accepted == 0
            assert rows[0].prob(verdict.token_ids[0]) > 0


@pytest.mark.parametrize("name", ("rejection", "block"))
def test_a_wider_draft_law_meets_a_narrower_target(name: str) -> None:
    wide, rows = floats(0.1, 0.1, 0.1, 0.7), [floats(0.2, 0.5, 0.3)] * 2
    for seed in range(40):
        noise = KeyedNoise(seed)
        verdict = get_verifier(name).verify(Draft.empty(0).draw(wide, noise), rows, noise)
        assert max(verdict.token_ids) < 3


@pytest.mark.parametrize("name", ("keyed", "match"))
def test_the_first_of_equal_siblings_counts(name: str) -> None:
    """T20a: node 1 repeats node 0; its child is never reached."""
    tree = Draft.of_token_ids(0, [0, 0, 1], [ROOT, ROOT, 1])
    verdict = get_verifier(name).verify(tree, [floats(1, 0), floats(0, 1), floats(0, 1), floats(0, 1)], KeyedNoise(1))
    assert (verdict.token_ids, verdict.path) == ((0, 1), (0,))


def test_residual_weights_on_dense_and_sparse_laws() -> None:
    dense, ids, mass = residual(exact("0.5 0.2 0.3"), exact("0.2 0.5 0.3"))
    assert ids is None and mass == exact("0.3 0.7").prob(0) and list(dense) == [mass, 0, 0]
    target = Sparse(np.array([0, 2]), exact("0.6 0.4").probs)
    weights, ids, mass = residual(target, Sparse(np.array([1, 2]), exact("0.7 0.3").probs))
    assert ids is not None and list(ids) == [0, 2]
    assert list(weights) == list(exact("0.6 0.1").probs)
    weights, ids, mass = residual(PointMass(2), PointMass(2))
    assert (list(weights), mass) == ([0], 0)


@pytest.mark.parametrize("name", ("rejection", "block"))
def test_an_impossible_token_is_refused_by_a_coin_of_zero(name: str) -> None:
    """T11: the test is strict, so u = 0 does not accept p = 0."""
    verdict = get_verifier(name).verify(
        drawn(0, exact("1 0 0"), [0]), [exact("0 0.6 0.4")] * 2, Scripted(uniforms={0: 0})
    )
    assert verdict.num_accepted == 0 and verdict.token_ids[0] != 0


def test_block_accepts_equal_laws_whatever_the_coins() -> None:
    """p = q: every threshold is 0/0 or 1."""
    law = exact("0.5 0.3 0.2")
    verdict = get_verifier("block").verify(drawn(0, law, [2, 1]), [law] * 3, Scripted(uniforms={0: 0.999, 1: 0.999}))
    assert verdict.num_accepted == 2
