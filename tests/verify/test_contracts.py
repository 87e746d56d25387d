"""What verifiers refuse, which noise they consume, and which errors name the position."""

import numpy as np
import pytest

from draftproof.core import ROOT, Dense, Draft, DrawnWith, Outcome, PointMass
from draftproof.errors import DraftContractError, LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.verify import VERIFIERS, get_verifier
from draftproof.verify.mutants.base import forged
from tests.verify.helpers import BONUS, COIN, MATCH, RESIDUAL, TARGET, Scripted, drawn, exact, floats

ALL = tuple(VERIFIERS)
CHAIN_RULES = ("rejection", "block")
TREE_RULES = ("recursive", "traversal", "hybrid", "multi_round", "k_seq", "multi_path_block")
RATIO_TESTS = (*CHAIN_RULES, *TREE_RULES)
SAMPLING = ("keyed", "match", *RATIO_TESTS)
EVEN = floats(0.25, 0.25, 0.25, 0.25)


def test_registry_names_and_properties() -> None:
    assert ALL == ("keyed", "greedy", "match", "rejection", "block", *TREE_RULES)
    properties = {
        name: (verifier.guarantee, verifier.supports_trees, verifier.needs_draft_law)
        for name, verifier in VERIFIERS.items()
    }
    assert properties == {
        "keyed": ("replay", True, False),
        "greedy": ("replay", True, False),
        "match": ("exact-law", True, False),
        "rejection": ("exact-law", False, True),
        "block": ("exact-law", False, True),
        **{name: ("exact-law", True, True) for name in TREE_RULES},
    }


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(ParameterError, match="keyed, greedy, match, rejection, block, recursive"):
        get_verifier("typical")


@pytest.mark.parametrize("name", CHAIN_RULES)
def test_chain_rules_refuse_trees(name: str) -> None:
    tree = Draft.of_token_ids(0, [1, 2], [ROOT, ROOT])
    with pytest.raises(DraftContractError, match="tree"):
        get_verifier(name).verify(tree, [EVEN] * 3, KeyedNoise(1))


@pytest.mark.parametrize("name", ALL)
def test_drafts_drawn_with_the_targets_field(name: str) -> None:
    noise = KeyedNoise(1)
    draft = Draft.empty(5).draw(EVEN, noise, share_target_field=True)
    verifier = get_verifier(name)
    if verifier.needs_draft_law:
        with pytest.raises(DraftContractError, match="share_target_field=False"):
            verifier.accepts(draft)
    else:
        verifier.accepts(draft)


@pytest.mark.parametrize("name", ALL)
def test_lengths_that_looked_at_a_dropped_token(name: str) -> None:
    noise = KeyedNoise(1)
    draft = Draft.empty(5).draw(EVEN, noise).draw(EVEN, noise).truncated(1, looked_at_dropped=True)
    verifier = get_verifier(name)
    if verifier.needs_draft_law:
        with pytest.raises(DraftContractError, match="dropped"):
            verifier.accepts(draft)
    else:
        verifier.accepts(draft)


@pytest.mark.parametrize("name", RATIO_TESTS)
def test_cutting_a_rule_made_draft_is_harmless(name: str) -> None:
    draft = Draft.of_token_ids(5, [1, 2, 3]).truncated(1, looked_at_dropped=True)
    assert draft.drawn_with is DrawnWith.NOTHING
    get_verifier(name).accepts(draft)


@pytest.mark.parametrize("name", RATIO_TESTS)
def test_a_drafted_token_that_its_law_excludes(name: str) -> None:
    """T15: q(x) = 0 at the drafted token. Only a forged draft can hold it."""
    lie = forged(Draft.of_token_ids(0, [0]), laws=[floats(0.0, 1.0)])
    with pytest.raises(DraftContractError, match="probability 0"):
        get_verifier(name).verify(lie, [floats(0.2, 0.8)] * 2, KeyedNoise(1))


@pytest.mark.parametrize("name", RATIO_TESTS)
def test_nan_in_the_drafts_law(name: str) -> None:
    lie = forged(Draft.of_token_ids(0, [0, 0]), laws=[floats(0.5, np.nan)] * 2)
    uniforms = {0: 0.9, 1: 0.9}
    with pytest.raises(DraftContractError, match="NaN"):
        get_verifier(name).verify(lie, [floats(0.2, 0.8)] * 3, Scripted(uniforms=uniforms))


@pytest.mark.parametrize("name", ALL)
def test_the_number_of_rows(name: str) -> None:
    draft = Draft.of_token_ids(0, [1, 2])
    with pytest.raises(ParameterError, match="3 rows"):
        get_verifier(name).verify(draft, [EVEN] * 2, KeyedNoise(1))


def test_greedy_refuses_laws_of_several_tokens() -> None:
    with pytest.raises(ParameterError, match="temperature=0"):
        get_verifier("greedy").verify(Draft.empty(0), [EVEN], KeyedNoise(1))


def test_greedy_takes_a_dense_law_of_one_token_and_no_noise() -> None:
    noise = Scripted()
    verdict = get_verifier("greedy").verify(Draft.of_token_ids(0, [2]), [floats(0, 0, 1), PointMass(1)], noise)
    assert verdict.token_ids == (2, 1)
    assert noise.asked == []


@pytest.mark.parametrize("name", SAMPLING)
@pytest.mark.parametrize("bad", [[np.nan] * 4, [0.0] * 4, [np.inf, 0, 0, 0]])
def test_a_row_that_is_no_law_names_its_position(name: str, bad: list[float]) -> None:
    with pytest.raises(LawError) as caught:
        get_verifier(name).verify(Draft.empty(17), [floats(*bad)], KeyedNoise(1))
    assert caught.value.position == 17


@pytest.mark.parametrize("name", SAMPLING)
def test_a_bad_row_is_raised_only_where_it_is_needed(name: str) -> None:
    """Row 1 is no law. With token 0 impossible it is never reached; with token 0 certain it is, at position 8."""
    verifier, draft = get_verifier(name), Draft.of_token_ids(7, [0, 1])
    for bad in (floats(np.nan, np.nan), LawError("every token is masked")):
        never = verifier.verify(draft, [floats(0.0, 1.0), bad, EVEN], KeyedNoise(1), telemetry=True)
        assert (never.token_ids, never.num_accepted, never.num_positions_agreeing) == ((1,), 0, 0)
        with pytest.raises(LawError) as caught:
            verifier.verify(draft, [floats(1.0, 0.0), bad, EVEN], KeyedNoise(1))
        assert caught.value.position == 8


def test_block_ends_before_a_bad_row_that_it_does_not_reach() -> None:
    """P_1 = .4: the prefix of one token is tested by itself, and a failed test never needs row 1."""
    draft = drawn(0, exact("0.5 0.5"), [0, 0])
    rows = [exact("0.2 0.8"), LawError("masked"), exact("0.5 0.5")]
    verdict = get_verifier("block").verify(draft, rows, Scripted(uniforms={0: 0.4}))
    assert verdict.token_ids == (1,)
    with pytest.raises(LawError, match="masked"):
        get_verifier("block").verify(draft, rows, Scripted(uniforms={0: 0.39}))


def test_noise_consumed_by_keyed() -> None:
    noise = Scripted()
    get_verifier("keyed").verify(Draft.of_token_ids(10, [0, 0, 1]), [EVEN] * 4, noise)
    assert noise.asked == [(TARGET, 10, 0), (TARGET, 11, 0), (TARGET, 12, 0)]


def test_keyed_keys_by_depth_in_a_tree() -> None:
    """Nodes: 1 and 0 after the context, then 0 after the second: the walk goes context, node 1, node 2."""
    noise = Scripted()
    tree = Draft.of_token_ids(10, [1, 0, 0], [ROOT, ROOT, 1])
    verdict = get_verifier("keyed").verify(tree, [EVEN] * 4, noise)
    assert (verdict.token_ids, verdict.path) == ((0, 0, 0), (1, 2))
    assert noise.asked == [(TARGET, 10, 0), (TARGET, 11, 0), (TARGET, 12, 0)]


def test_noise_consumed_by_match() -> None:
    noise = Scripted()
    tree = Draft.of_token_ids(10, [1, 0, 0], [ROOT, ROOT, 1])
    get_verifier("match").verify(tree, [EVEN] * 4, noise)
    assert noise.asked == [(MATCH, 10, 0), (MATCH, 10, 2), (MATCH, 10, 3)]


def test_noise_consumed_by_rejection() -> None:
    draft, rows = drawn(10, exact("0.5 0.5"), [0, 0]), [exact("0.4 0.6")] * 3
    accepting, rejecting = Scripted(uniforms={0: 0.1, 1: 0.1}), Scripted(uniforms={0: 0.1, 1: 0.9})
    get_verifier("rejection").verify(draft, rows, accepting)
    assert accepting.asked == [(COIN, 10, 0), (COIN, 10, 1), (BONUS, 10, 0)]
    get_verifier("rejection").verify(draft, rows, rejecting)
    assert rejecting.asked == [(COIN, 10, 0), (COIN, 10, 1), (RESIDUAL, 10, 1)]


def test_noise_consumed_by_block() -> None:
    draft, rows = drawn(10, exact("0.5 0.5"), [0, 0]), [exact("0.4 0.6")] * 3
    accepting, rejecting = Scripted(uniforms={1: 0.1}), Scripted(uniforms={0: 0.9, 1: 0.9})
    get_verifier("block").verify(draft, rows, accepting)
    assert accepting.asked == [(COIN, 10, 1), (BONUS, 10, 0)]
    get_verifier("block").verify(draft, rows, rejecting)
    assert rejecting.asked == [(COIN, 10, 1), (COIN, 10, 0), (RESIDUAL, 10, 0)]


@pytest.mark.parametrize("name", SAMPLING)
def test_telemetry_changes_nothing_else(name: str) -> None:
    law = floats(0.4, 0.3, 0.2, 0.1)
    for seed in range(40):
        noise = KeyedNoise(seed)
        draft = Draft.empty(3).draw(law, noise).draw(law, noise).draw(law, noise)
        rows = [EVEN, law, EVEN, law]
        plain = get_verifier(name).verify(draft, rows, noise)
        counted = get_verifier(name).verify(draft, rows, noise, telemetry=True)
        assert plain.num_positions_agreeing is None
        assert counted.num_positions_agreeing is not None
        assert counted.num_positions_agreeing >= (1 if plain.num_accepted else 0)
        assert (counted.token_ids, counted.path, counted.decisions) == (plain.token_ids, plain.path, plain.decisions)


def test_decisions_tell_what_happened() -> None:
    draft, rows = drawn(10, exact("0.5 0.5"), [0, 1]), [exact("0.4 0.6")] * 3
    verdict = get_verifier("rejection").verify(draft, rows, Scripted(uniforms={0: 0.1, 1: 0.1}))
    told = [(d.position, d.node, d.drafted_id, d.emitted_id, d.outcome) for d in verdict.decisions]
    assert told == [
        (10, 0, 0, 0, Outcome.ACCEPTED),
        (11, 1, 1, 1, Outcome.ACCEPTED),
        (12, ROOT, None, 0, Outcome.BONUS),
    ]
    assert (verdict.decisions[1].target_prob, verdict.decisions[1].draft_prob) == (
        rows[1].prob(1),
        draft.laws[1].prob(1),
    )
    assert verdict.outcome is Outcome.BONUS


def test_zero_size_vocabulary_is_an_error() -> None:
    with pytest.raises(ParameterError):
        Dense(np.zeros(0))
