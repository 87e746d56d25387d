"""The proof itself: the quick subset is exact, the full list covers what it must, and an inexact rule would show."""

from collections import defaultdict
from fractions import Fraction

import pytest

from draftproof.core import Draft, Key, Noise, Purpose
from draftproof.verify import VERIFIERS, get_verifier
from draftproof.verify.chain_settings import CHAIN_SETTINGS
from draftproof.verify.combinations import CHAINS, combinations, shapes_of, takes_ranks
from draftproof.verify.exact import enumerate_steps, max_error, output_law, speculative_step
from draftproof.verify.mutants.base import constant
from draftproof.verify.proposals import Fixed, Ranked, Sampled
from draftproof.verify.prove import ProofRecord, prove
from draftproof.verify.tables import PAIR_KINDS, Context, random_pair


@pytest.fixture(scope="module")
def records() -> list[ProofRecord]:
    calls: list[tuple[int, int]] = []
    found = list(prove(quick=True, progress=lambda done, total: calls.append((done, total))))
    assert calls == [(index + 1, len(found)) for index in range(len(found))]
    return found


def test_quick_is_exact(records: list[ProofRecord]) -> None:
    inexact = [record for record in records if not record.exact or record.max_error != "0"]
    assert inexact == []
    assert {record.verifier for record in records} == set(VERIFIERS)
    assert all(record.paths >= record.instances > 0 for record in records)
    assert {record.replay_mismatches for record in records if record.guarantee == "replay"} == {0}


def test_records_are_plain_data(records: list[ProofRecord]) -> None:
    assert set(records[0].as_dict()) >= {
        "verifier",
        "law",
        "topology",
        "passes",
        "instances",
        "paths",
        "max_error",
        "exact",
    }


def test_the_full_list_covers_every_verifier_law_topology_and_kind() -> None:
    covered = defaultdict(set)
    for combination in combinations():
        for instance in combination.instances:
            covered[combination.verifier, combination.law, combination.shape, combination.num_passes].add(
                (instance.kind, instance.vocab_size)
            )
    for name, verifier in VERIFIERS.items():
        for law in ("PointMass", "Dense", "Sparse"):
            for shape in shapes_of(verifier):
                if law == "PointMass" and not takes_ranks(verifier, shape):
                    continue
                one_pass = covered[name, law, shape, 1]
                assert {kind for kind, _ in one_pass} >= set(PAIR_KINDS)
                if shape in CHAINS:
                    assert {size for _, size in one_pass} == {2, 3, 4}
                    assert {kind for kind, _ in one_pass} & set(CHAIN_SETTINGS)
                    assert covered[name, law, shape, 2]
            assert 3 in {size for _, size in covered[name, law, (1, 1), 2]}
    assert covered["keyed", "every draft", (2, 2), 1] and covered["keyed", "Dense, target's field", (2, 2), 1]


def test_an_error_is_measured_exactly() -> None:
    """Token 0 is drafted under a law that says 1/2 and was always 0: with p = (1/3, 2/3) it is accepted at 2/3."""
    target = constant("1/3 2/3")

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        return (0,) if noise.coin(Key(Purpose.COIN, 1), Fraction(2, 3)) else (1,)

    found = enumerate_steps(step, target)
    assert found.law == {(0,): Fraction(2, 3), (1,): Fraction(1, 3)}
    assert (found.max_error, found.total_variation, found.num_paths) == (Fraction(1, 3), Fraction(1, 3), 2)


def test_output_law_is_the_product_of_the_conditionals() -> None:
    """T20e: rows of P and Q by the last token, start 0, k = 2."""
    from draftproof.verify.mutants.base import markov

    target = markov(("0.6 0.3 0.1", "0.2 0.5 0.3", "0.1 0.1 0.8"))
    draft = markov(("0.3 0.3 0.4", "0.5 0.25 0.25", "0.2 0.6 0.2"))
    for name in ("keyed", "match", "rejection", "block"):
        law = output_law(get_verifier(name), target, Sampled(draft, (1, 1)))
        assert law[0, 1, 2] == Fraction("0.054") and len(law) == 27 and sum(law.values()) == 1
        assert max_error(get_verifier(name), target, Sampled(draft, (1, 1))) == 0


def test_two_passes_carry_the_context_over() -> None:
    pair = random_pair("plain", 2, 5)
    for name in ("keyed", "match", "rejection", "block"):
        assert max_error(get_verifier(name), pair.target, Sampled(pair.draft, (1, 1)), num_passes=3) == 0


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
def test_keyed_with_a_length_that_looked_at_the_targets_noise(shape: tuple[int, ...]) -> None:
    """Any cut is safe under keyed: here the draft is dropped if its second token is 0, in every pass."""
    target = constant("1/2 1/3 1/6")

    def propose(context: Context, noise: Noise) -> Draft:
        draft = Sampled(target, shape, share_target_field=True)(context, noise)
        return draft if draft.token_ids[1] == 0 else draft.truncated(0, looked_at_dropped=True)

    step = speculative_step(get_verifier("keyed"), target, propose)
    found = enumerate_steps(step, target, 2, replay=True)
    assert (found.max_error, found.num_replay_mismatches) == (0, 0)


def test_match_with_a_draft_that_shares_the_targets_field() -> None:
    pair = random_pair("plain", 3, 2)
    drafter = Sampled(pair.draft, (1, 1), share_target_field=True)
    assert max_error(get_verifier("match"), pair.target, drafter) == 0
    small = random_pair("plain", 2, 2)
    assert max_error(get_verifier("match"), small.target, Sampled(small.draft, (1, 1), True), num_passes=2) == 0


@pytest.mark.parametrize("name", ["keyed", "match", "rejection", "block"])
def test_telemetry_keeps_the_law(name: str) -> None:
    pair = random_pair("zeros", 3, 4)
    step = speculative_step(get_verifier(name), pair.target, Sampled(pair.draft, (1, 1)), telemetry=True)
    assert enumerate_steps(step, pair.target).max_error == 0


def test_greedy_and_keyed_agree_at_temperature_zero() -> None:
    pair = random_pair("plain", 3, 6, target_form="PointMass")
    for drafter in (Ranked(pair.draft, (2, 2)), Fixed((1, 1), (0, 1)), Sampled(pair.draft, (1, 1))):
        laws = [output_law(get_verifier(name), pair.target, drafter, 1) for name in ("greedy", "keyed")]
        assert laws[0] == laws[1]
