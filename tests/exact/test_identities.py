"""Acceptance laws that are known exactly: identities between verifiers, and closed forms."""

from collections import defaultdict
from fractions import Fraction
from itertools import product

import pytest

from draftproof.core import Purpose, Siblings
from draftproof.verify import get_verifier
from draftproof.verify.exact import EnumeratingOracle, enumerate_steps, speculative_step, target_rows
from draftproof.verify.mutants.base import PROMPT, constant, markov
from draftproof.verify.mutants.blocks import BlockTwin
from draftproof.verify.mutants.streams import by_position
from draftproof.verify.mutants.twins import RejectionTwin, redirected
from draftproof.verify.proposals import Proposer, Ranked, Sampled, SampledTree
from draftproof.verify.race import match_probability
from draftproof.verify.tables import PAIR_KINDS, PairKind, Table, random_pair

T20E_TARGET = markov(("0.6 0.3 0.1", "0.2 0.5 0.3", "0.1 0.1 0.8"))
T20E_DRAFT = markov(("0.3 0.3 0.4", "0.5 0.25 0.25", "0.2 0.6 0.2"))


def acceptance_law(name: str, target: Table, drafter: Proposer) -> dict[int, Fraction]:
    """The law of the number of accepted tokens in one pass after the prompt."""
    verifier, law = get_verifier(name), defaultdict(Fraction)

    def run(noise: EnumeratingOracle) -> int:
        draft = drafter(PROMPT, noise)
        return verifier.verify(draft, target_rows(target, PROMPT, draft), noise).num_accepted

    for path in EnumeratingOracle().paths(run):
        law[path.result] += path.probability
    return dict(law)


def mean(law: dict[int, Fraction]) -> Fraction:
    return sum((number * probability for number, probability in law.items()), Fraction(0))


@pytest.mark.parametrize(("kind", "vocab_size"), list(product(PAIR_KINDS, (2, 3, 4))))
def test_point_mass_drafts_are_accepted_alike(kind: PairKind, vocab_size: int) -> None:
    """Under a point mass, rejection and block have match's acceptance law: the drafted path's probability."""
    pair = random_pair(kind, vocab_size, 8)
    drafter = Ranked(pair.draft, (1, 1, 1))
    laws = [acceptance_law(name, pair.target, drafter) for name in ("match", "rejection", "block", "keyed")]
    assert laws[0] == laws[1] == laws[2] == laws[3]


def test_t10_one_hot_drafts_are_exact_although_reported_as_biased() -> None:
    """The law is the target's for a draft that is always token 0, and P(accept) is p(0)."""
    target, drafter = constant("0.51 0.49"), Ranked(constant("0.51 0.49"), (1,))
    for name in ("keyed", "match", "rejection", "block"):
        found = enumerate_steps(speculative_step(get_verifier(name), target, drafter), target)
        assert found.max_error == 0 and found.first_token_law()[0] == Fraction("0.51")
        assert acceptance_law(name, target, drafter)[1] == Fraction("0.51")


def test_t10_sample_and_match_accepts_the_sum_of_products() -> None:
    target, draft = constant("0.5 0.2 0.3"), constant("0.2 0.5 0.3")
    assert acceptance_law("match", target, Sampled(draft, (1,)))[1] == Fraction("0.29")


@pytest.mark.parametrize(
    ("length", "block", "token"),
    [(2, Fraction(11, 9), Fraction(10, 9)), (3, Fraction(5, 3), Fraction(38, 27))],
)
def test_t20d_block_beats_the_token_rule(length: int, block: Fraction, token: Fraction) -> None:
    target, drafter = constant("1/3 2/3"), Sampled(constant("2/3 1/3"), (1,) * length)
    assert mean(acceptance_law("block", target, drafter)) == block
    assert mean(acceptance_law("rejection", target, drafter)) == token


def test_t20e_acceptance_lengths() -> None:
    law = acceptance_law("rejection", T20E_TARGET, Sampled(T20E_DRAFT, (1, 1)))
    assert law == {0: Fraction("0.30"), 1: Fraction("0.24"), 2: Fraction("0.46")}
    assert mean(law) == Fraction("1.16")


@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_block_accepts_at_least_as_much_as_rejection(kind: PairKind) -> None:
    pair = random_pair(kind, 3, 9)
    drafter = Sampled(pair.draft, (1, 1))
    assert mean(acceptance_law("block", pair.target, drafter)) >= mean(
        acceptance_law("rejection", pair.target, drafter)
    )


@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_one_token_under_rejection_is_a_maximal_coupling(kind: PairKind) -> None:
    pair = random_pair(kind, 3, 10)
    overlap = sum(map(min, pair.target.probs(PROMPT), pair.draft.probs(PROMPT)))
    for name in ("rejection", "block"):
        assert acceptance_law(name, pair.target, Sampled(pair.draft, (1,))).get(1, 0) == overlap


@pytest.mark.parametrize("kind", [kind for kind in PAIR_KINDS if kind != "wide draft"])
def test_a_shared_race_never_accepts_more_than_rejection(kind: PairKind) -> None:
    pair = random_pair(kind, 4, 11)
    target, draft = pair.target.probs(PROMPT), pair.draft.probs(PROMPT)
    assert match_probability(target, draft) <= sum(map(min, target, draft))


@pytest.mark.parametrize("kind", PAIR_KINDS)
def test_the_twins_without_a_fault_are_the_production_rules(kind: PairKind) -> None:
    """Otherwise a mutant could be caught for another reason than its fault."""
    pair = random_pair(kind, 3, 12, target_form="Dense")
    drafter = Sampled(pair.draft, (1, 1))
    for name, twin in (("rejection", RejectionTwin(pair.target, drafter)), ("block", BlockTwin(pair.target, drafter))):
        emitted = []
        for step in (speculative_step(get_verifier(name), pair.target, drafter), twin):
            law = defaultdict(Fraction)
            for path in EnumeratingOracle().paths(lambda noise, step=step: step(PROMPT, noise)):
                law[path.result] += path.probability
            emitted.append(law)
        assert emitted[0] == emitted[1]


@pytest.mark.parametrize("purpose", [Purpose.COIN, Purpose.DRAFT])
def test_noise_by_position_alone_does_no_harm_to_token_wise_rejection(purpose: Purpose) -> None:
    """Token-wise rejection never looks past the rejected position, so nothing that a later pass reuses was seen.

    Block verification does, and the mutants "coins persist under block" and "drafts persist under block" are biased.
    """
    target, drafter = constant("0.10 0.45 0.45"), Sampled(constant("0.70 0.25 0.05"), (1, 1))
    step = redirected(speculative_step(get_verifier("rejection"), target, drafter), by_position(purpose))
    assert enumerate_steps(step, target, 2).max_error == 0


ON_A_CHAIN = {
    "traversal": "block",
    "multi_path_block": "block",
    "recursive": "rejection",
    "hybrid": "rejection",
    "multi_round": "rejection",
    "k_seq": "rejection",
}


@pytest.mark.parametrize("name", ON_A_CHAIN)
@pytest.mark.parametrize("kind", ["plain", "zeros", "equal"])
def test_on_a_chain_tree_rules_are_the_chains_rules(name: str, kind: PairKind) -> None:
    pair = random_pair(kind, 3, 5)
    drafter = Sampled(pair.draft, (1, 1, 1))
    laws = [acceptance_law(rule, pair.target, drafter) for rule in (name, ON_A_CHAIN[name])]
    assert laws[0] == laws[1]


@pytest.mark.parametrize("name", ["recursive", "traversal", "hybrid"])
def test_ranked_trees_are_accepted_as_by_match(name: str) -> None:
    """On a deterministic tree no exact rule accepts more than `match`; these accept as much."""
    pair = random_pair("plain", 4, 3)
    drafter = Ranked(pair.draft, (2, 2))
    assert acceptance_law(name, pair.target, drafter) == acceptance_law("match", pair.target, drafter)


@pytest.mark.parametrize("vocab_size", [3, 4])
def test_rules_for_one_position_are_ordered_as_their_theory_says(vocab_size: int) -> None:
    """hybrid is the optimum for its proposal; draws that differ beat draws that may not; k_seq beats no sibling."""
    pair = random_pair("plain", vocab_size, 9)

    def accepted(name: str, siblings: Siblings, num_children: int) -> Fraction:
        return mean(acceptance_law(name, pair.target, SampledTree(pair.draft, (num_children,), siblings)))

    alone = accepted("recursive", Siblings.WITHOUT_REPLACEMENT, 1)
    different = accepted("recursive", Siblings.WITHOUT_REPLACEMENT, 2)
    alike = accepted("multi_round", Siblings.INDEPENDENT, 2)
    assert alone < alike < different
    assert alone < accepted("k_seq", Siblings.INDEPENDENT, 2)
    probs, draft_probs = pair.target.probs(PROMPT), pair.draft.probs(PROMPT)
    best = max(range(vocab_size), key=lambda token: draft_probs[token])
    rest = 1 - draft_probs[best]
    optimum = probs[best] + sum(
        min(probs[token], draft_probs[token] / rest) for token in range(vocab_size) if token != best
    )
    assert accepted("hybrid", Siblings.RANKED_AND_ONE, 2) == optimum


def test_traversal_accepts_at_least_as_much_as_recursive_rejection() -> None:
    for seed in range(6):
        pair = random_pair("plain", 3, seed)
        drafter = SampledTree(pair.draft, (2, 1), Siblings.WITHOUT_REPLACEMENT)
        means = [mean(acceptance_law(name, pair.target, drafter)) for name in ("recursive", "traversal")]
        assert means[0] <= means[1]
