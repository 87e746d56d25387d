"""T01 to T20g: public bugs of verification. The right value is required of the production verifiers, by enumeration in
rational arithmetic; the wrong value is shown to come from the mutant that repeats the bug."""

from fractions import Fraction

import numpy as np
import pytest

from draftproof.core import ROOT, Draft, Key, Outcome, PointMass, Purpose
from draftproof.noise import KeyedNoise
from draftproof.verify import get_verifier
from draftproof.verify.exact import Enumeration, enumerate_steps, speculative_step
from draftproof.verify.mutants import all_mutants
from draftproof.verify.mutants.base import constant
from draftproof.verify.proposals import Fixed, Sampled
from tests.verify.helpers import Scripted, binomial_interval, drawn, exact, floats

MUTANTS = {mutant.name: mutant for mutant in all_mutants()}
RATIO_TESTS = ("rejection", "block")
SAMPLING = ("keyed", "match", "rejection", "block")


def law_of(enumeration: Enumeration) -> list[float]:
    """The first token's law, to four digits, which is what the reports give."""
    law = enumeration.first_token_law()
    return [round(float(law.get(token_id, 0)), 4) for token_id in range(max(law) + 1)]


def padded(law: list[float], size: int) -> list[float]:
    return law + [0.0] * (size - len(law))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("argmax draft, softmax law", [0.3, 0.4, 0.2, 0.1], [0.6, 0.4, 0, 0]),  # T01
        ("filtered draw, raw law", [0.35, 0.65, 0, 0], [0.5455, 0.4545, 0, 0]),  # T02
        ("residual through softmax", [0.5, 0.3, 0.2], [0.5623, 0.2689, 0.1689]),  # T03
        ("residual subtracts at the drafted token only", [0.5, 0.2, 0.3], [0.3875, 0.2, 0.4125]),  # T04
        ("residual replaced by the target", [0.5, 0.2, 0.3], [0.35, 0.26, 0.39]),  # T04
        ("drawn from bfloat16 probabilities, float32 law", [0.485, 0.515], [0.5, 0.5]),  # T05
        ("temperature 0 without one-hot laws", [0, 1, 0], [1, 0, 0]),  # T06
        ("ranked candidates tested as samples, p = q", [0.51, 0.49], [1, 0]),  # T07
        ("ranked candidates tested as samples", [0.3, 0.3, 0.25, 0.15], [0.5, 0.1333, 0.2, 0.1667]),  # T07
        ("draft and residual share one race", [0.1, 0.45, 0.45], [0.1, 0.3879, 0.5121]),  # T08
        ("token dropped by its own confidence", [0.5, 0.5], [0.7, 0.3]),  # T09
        ("length policy that read a discarded draft", [0.7, 0.3], [0.85, 0.15]),  # DSpark
        ("first draft never checked", [0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0]),  # T18
        ("greedy acceptance walk at temperature 1", [0.6, 0.4], [1, 0]),  # T19
        ("duplicate siblings summed", [0.3, 0.5, 0.2], [0.6, 0.2857, 0.1143]),  # T20a
        ("second sibling tested with a stale target", [0.3, 0.3, 0.25, 0.15], [0.39, 0.34, 0.175, 0.095]),  # T20b
        ("second sibling tested with a stale draft law", [0.3, 0.3, 0.25, 0.15], [0.3, 0.375, 0.2116, 0.1134]),  # T20b
        (
            "independent siblings tested as without replacement",
            [0.3, 0.3, 0.25, 0.15],
            [0.3, 0.27, 0.2582, 0.1718],
        ),  # T20c
        ("residual aligned by index on sparse lists", [0.6, 0, 0.4], [0, 0, 1]),  # T20f
    ],
)
def test_right_and_wrong_laws(name: str, right: list[float], wrong: list[float]) -> None:
    mutant = MUTANTS[name]
    assert padded(law_of(mutant.right()), len(right)) == right
    assert padded(law_of(mutant.wrong()), len(wrong)) == wrong


def test_t01_second_input() -> None:
    target, draft = constant("0.5 0.3 0.15 0.05"), constant("0.4 0.3 0.2 0.1")
    for name in RATIO_TESTS:
        found = enumerate_steps(speculative_step(get_verifier(name), target, Sampled(draft, (1,))), target)
        assert found.max_error == 0


@pytest.mark.parametrize("name", RATIO_TESTS)
def test_t02_acceptance(name: str) -> None:
    """.8045 = sum of min(p, r) with r = (6/11, 5/11)."""
    target, draft = constant("0.35 0.65 0 0"), constant("6/11 5/11 0 0")
    found = enumerate_steps(speculative_step(get_verifier(name), target, Sampled(draft, (1,))), target)
    assert found.max_error == 0
    accepted = sum(map(min, target.probs((0,)), draft.probs((0,))))
    assert round(float(accepted), 4) == 0.8045


def test_t08_rejected_share() -> None:
    """P(1 | rejected) is 1/3 by right, .2299 when the noise is shared."""
    shares = {}
    for kind, found in (("right", MUTANTS["draft and residual share one race"].right()), ("wrong", None)):
        law = (found or MUTANTS["draft and residual share one race"].wrong()).first_token_law()
        # Token 0 is drafted with .7 and kept with 1/7; tokens 1 and 2, drafted with .25 and .05, are always kept.
        recovered = {1: law[1] - Fraction("0.25"), 2: law[2] - Fraction("0.05")}
        shares[kind] = recovered[1] / sum(recovered.values())
    assert shares["right"] == Fraction(1, 3)
    assert round(float(shares["wrong"]), 4) == 0.2299


def test_t09_keep_then_stop_is_exact_and_needs_no_mark() -> None:
    """The draft stops after an unlikely token and keeps it: nothing that was looked at is dropped."""
    target, table = constant("0.2 0.3 0.5"), constant("0.6 0.3 0.1")

    def propose(context, noise):  # type: ignore[no-untyped-def]
        draft = Draft.empty(len(context)).draw(table.law(context), noise)
        if draft.laws[0].prob(draft.token_ids[0]) < Fraction("0.4"):
            return draft
        return draft.draw(table.law(context), noise)

    for name in RATIO_TESTS:
        assert enumerate_steps(speculative_step(get_verifier(name), target, propose), target).max_error == 0


@pytest.mark.parametrize("name", RATIO_TESTS)
def test_t11_zero_target_probability_with_a_coin_of_zero(name: str) -> None:
    noise = Scripted(uniforms={0: 0})
    verdict = get_verifier(name).verify(drawn(0, floats(1, 0, 0), [0]), [floats(0, 0.6, 0.4)] * 2, noise)
    assert verdict.num_accepted == 0 and noise.weights[0][0] == 0


def test_t11_the_mutant_emits_the_impossible_token() -> None:
    assert MUTANTS["u <= p/q accepts probability 0"].right().first_token_law().get(0, 0) == 0
    assert MUTANTS["u <= p/q accepts probability 0"].wrong().first_token_law()[0] > 0


def test_t12_no_coin_is_one_and_no_draw_leaves_the_support() -> None:
    noise = KeyedNoise(5)
    uniforms = [noise.uniform(Key(Purpose.COIN, position)) for position in range(2000)]
    assert 0 < min(uniforms) and max(uniforms) < 1
    assert 3 in MUTANTS["coin rounds to 1 in the token search"].wrong().first_token_law()


def test_t13_coins_are_finer_than_float32() -> None:
    """A coin is an odd multiple of 2^-53: p = 1e-9 against q = 1 is no longer 2^-24 or nothing."""
    noise = KeyedNoise(5)
    for position in range(200):
        assert (noise.uniform(Key(Purpose.COIN, position)) * 2**53) % 2 == 1


def test_t14_zero_residual_draws_from_the_target() -> None:
    """float32 laws with p <= q everywhere and a coin that rejects all the same."""
    target = floats(0.0, 0.5, 0.25, 0.25, 0.0)
    draft_law = floats(0.0, 0.50000006, 0.25, 0.25, 0.0)
    assert draft_law.probs[1] > target.probs[1]
    for name in RATIO_TESTS:
        noise = Scripted(uniforms={0: 0.99999999})
        verdict = get_verifier(name).verify(drawn(0, draft_law, [1]), [target] * 2, noise)
        assert verdict.outcome is Outcome.RECOVERED
        assert noise.weights[-1] == list(target.probs) and target.prob(verdict.token_ids[0]) > 0


def test_t14_the_mutants_leave_the_support() -> None:
    assert MUTANTS["empty residual gives token 0"].wrong().first_token_law()[0] > 0
    assert MUTANTS["empty residual gives token V - 1"].wrong().first_token_law()[4] > 0


@pytest.mark.parametrize("name", SAMPLING)
def test_t16_disjoint_supports(name: str) -> None:
    target, drafter = constant("0 0 0.7 0.3"), Sampled(constant("0.5 0.5 0 0"), (1, 1))
    found = enumerate_steps(speculative_step(get_verifier(name), target, drafter), target)
    assert found.max_error == 0
    assert {len(sequence) for sequence, probability in found.law.items() if probability} == {1}


@pytest.mark.parametrize("name", ("keyed", "greedy", "match", "rejection", "block"))
def test_t17_each_draft_meets_its_own_row(name: str) -> None:
    rows = [PointMass(token_id) for token_id in (7, 3, 9, 4)]
    verdict = get_verifier(name).verify(Draft.of_token_ids(0, [7, 3, 9]), rows, KeyedNoise(1))
    assert (verdict.num_accepted, verdict.token_ids) == (3, (7, 3, 9, 4))


@pytest.mark.parametrize("name", ("keyed", "greedy", "match", "rejection", "block"))
def test_t18_the_first_draft_is_checked(name: str) -> None:
    verdict = get_verifier(name).verify(Draft.of_token_ids(0, [1]), [PointMass(5)] * 2, KeyedNoise(1))
    assert (verdict.num_accepted, verdict.token_ids) == (0, (5,))


@pytest.mark.parametrize("name", SAMPLING)
def test_t19_first_token_seed_and_bonus_are_samples(name: str) -> None:
    """150 seeds: the first token after the prompt (no draft) and the bonus after a certain draft are the top token,
    p = .3, Binomial(150, .3) times; error budget 1e-6 each. An argmax gives 150."""
    top, certain = floats(0.3, 0.25, 0.25, 0.2), PointMass(2)
    first = bonus = 0
    for seed in range(150):
        noise = KeyedNoise(seed)
        first += get_verifier(name).verify(Draft.empty(11), [top], noise).token_ids[0] == 0
        bonus += get_verifier(name).verify(Draft.of_token_ids(11, [2]), [certain, top], noise).token_ids[1] == 0
    low, high = binomial_interval(150, "0.3", 1e-6)
    assert low <= first <= high < 150
    assert low <= bonus <= high


@pytest.mark.parametrize("name", SAMPLING)
def test_t19_the_walk_is_a_sample(name: str) -> None:
    """p = (.6, .4) and a draft of token 0: token 1 comes out 40 % of 150 times, never under an argmax."""
    row = floats(0.6, 0.4)
    ones = sum(
        get_verifier(name).verify(Draft.of_token_ids(3, [0]), [row] * 2, KeyedNoise(seed)).token_ids[0]
        for seed in range(150)
    )
    low, high = binomial_interval(150, "0.4", 1e-6)
    assert 0 < low <= ones <= high


def test_t19_the_mutants_are_greedy() -> None:
    assert MUTANTS["greedy first token after the prompt"].wrong().first_token_law() == {0: 1}
    for name in ("greedy token that seeds the next step", "greedy bonus token"):
        assert MUTANTS[name].wrong().total_variation > 0 == MUTANTS[name].right().total_variation


@pytest.mark.parametrize("name", ("keyed", "match"))
def test_t20a_duplicate_siblings(name: str) -> None:
    target = constant("0.3 0.5 0.2")
    found = enumerate_steps(speculative_step(get_verifier(name), target, Fixed((2, 1), (0, 0, 1, 2))), target)
    assert found.max_error == 0 and found.first_token_law()[0] == Fraction("0.3")


def test_t20f_sparse_residual() -> None:
    """Right residual {0: .857, 2: .143}: weights .6 and .1."""
    mutant = MUTANTS["residual aligned by index on sparse lists"]
    assert mutant.right().max_error == 0
    noise = Scripted(uniforms={0: Fraction(99, 100)})
    target = constant("0.6 0 0.4", form="Sparse").law(())
    get_verifier("rejection").verify(drawn(0, constant("0 0.7 0.3", form="Sparse").law(()), [0]), [target] * 2, noise)
    assert noise.weights == [[Fraction("0.6"), Fraction("0.1")]]


def test_t20g_counters() -> None:
    draft, rows = drawn(0, exact("0.5 0.5"), [0, 0, 0]), [exact("0.4 0.6")] * 4
    noise = Scripted(uniforms={0: 0.1, 1: 0.9, 2: 0.1})
    verdict = get_verifier("rejection").verify(draft, rows, noise, telemetry=True)
    assert (verdict.num_accepted, len(verdict.token_ids), verdict.num_positions_agreeing) == (1, 2, 2)
    assert MUTANTS["hypothetical acceptance count committed"].wrong().total_variation > 0


def test_t20_tree_parents_other_than_a_chain() -> None:
    tree = Draft.of_token_ids(0, [0, 1, 2], [ROOT, ROOT, 1])
    verdict = get_verifier("keyed").verify(
        tree, [floats(0, 1, 0), floats(1, 0, 0), floats(0, 0, 1), floats(1, 0, 0)], KeyedNoise(1)
    )
    assert (verdict.token_ids, verdict.path) == ((1, 2, 0), (1, 2))
    assert np.array_equal(verdict.path, [1, 2])
