"""Rules for trees that were drawn: which siblings each takes, what it consumes, and floats beside fractions."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from draftproof.core import ROOT, Draft, Law, Outcome, PointMass, Siblings, Sparse, Without
from draftproof.errors import DraftContractError, LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.verify import get_verifier
from draftproof.verify.k_seq import STEPS, division_factor
from draftproof.verify.multi_path_block import select
from tests.verify.helpers import BONUS, COIN, RESIDUAL, Scripted, exact, floats

LAW = floats(0.4, 0.3, 0.2, 0.1)
ROW = floats(0.1, 0.2, 0.3, 0.4)
SCHEMES = {
    "recursive": Siblings.WITHOUT_REPLACEMENT,
    "traversal": Siblings.WITHOUT_REPLACEMENT,
    "hybrid": Siblings.RANKED_AND_ONE,
    "multi_round": Siblings.INDEPENDENT,
    "k_seq": Siblings.INDEPENDENT,
    "multi_path_block": Siblings.INDEPENDENT,
}


def drawn_tree(siblings: Siblings, num_children: int = 3, seed: int = 1, law: Law = LAW) -> Draft:
    return Draft.empty(4).draw_children(law, KeyedNoise(seed), num_children, siblings=siblings, parent=ROOT)


@pytest.mark.parametrize("siblings", Siblings)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_rule_takes_its_own_siblings_only(name: str, siblings: Siblings) -> None:
    draft = drawn_tree(siblings)
    if siblings is SCHEMES[name]:
        get_verifier(name).verify(draft, [ROW] * 4, KeyedNoise(2))
        return
    with pytest.raises(DraftContractError, match=f"Siblings.{SCHEMES[name].name}"):
        get_verifier(name).verify(draft, [ROW] * 4, KeyedNoise(2))


@pytest.mark.parametrize("name", ["recursive", "traversal", "hybrid"])
def test_ranked_siblings_are_taken_once_each(name: str) -> None:
    get_verifier(name).accepts(Draft.of_token_ids(0, [2, 1, 0], [ROOT] * 3))
    with pytest.raises(DraftContractError, match="siblings"):
        get_verifier(name).accepts(Draft.of_token_ids(0, [2, 2], [ROOT] * 2))


def test_paths_part_at_the_context_only() -> None:
    draft = drawn_tree(Siblings.INDEPENDENT, 1).draw_children(LAW, KeyedNoise(3), 2, siblings=Siblings.INDEPENDENT)
    get_verifier("k_seq").accepts(draft)
    with pytest.raises(DraftContractError, match="part at the context only"):
        get_verifier("multi_path_block").accepts(draft)


def test_two_laws_after_one_prefix_are_refused() -> None:
    draft = Draft.empty(0)
    for seed in (1, 2):
        draft = draft.draw_children(exact("1 0"), KeyedNoise(seed), 1, siblings=Siblings.INDEPENDENT, parent=ROOT)
    with pytest.raises(DraftContractError, match="one and the same|independent draws of one law"):
        get_verifier("multi_path_block").verify(draft, [exact("0.5 0.5")] * 3, KeyedNoise(1))


@pytest.mark.parametrize("seed", range(20))
def test_equal_paths_are_followed_to_the_one_that_goes_on(seed: int) -> None:
    """Two first tokens are equal, and only the second has tokens below: what is accepted is a path of the draft."""
    law, noise = floats(0.0, 1.0), KeyedNoise(seed)
    draft = Draft.empty(0).draw_children(law, noise, 2, siblings=Siblings.INDEPENDENT, parent=ROOT)
    draft = draft.draw_children(law, noise, 1, siblings=Siblings.INDEPENDENT, parent=1)
    verdict = get_verifier("multi_path_block").verify(draft, [floats(0.0, 1.0)] * 4, noise)
    assert verdict.path == (1, 2) and verdict.token_ids == (1, 1, 1)


@pytest.mark.parametrize("name", SCHEMES)
def test_noise_aware_trees_are_refused_by_ratio_tests(name: str) -> None:
    aware = Draft.of_token_ids(0, [2, 1], [ROOT, ROOT], looked_at_target_field=True)
    with pytest.raises(DraftContractError, match="the target's own noise"):
        get_verifier(name).accepts(aware)
    get_verifier("keyed").accepts(aware)


def test_children_without_replacement_differ_and_carry_what_was_left() -> None:
    draft = drawn_tree(Siblings.WITHOUT_REPLACEMENT, 9)
    assert sorted(draft.token_ids) == [0, 1, 2, 3]
    assert draft.laws[0] is LAW
    for index, law in enumerate(draft.laws[1:], start=1):
        assert isinstance(law, Without) and law.excluded_ids == draft.token_ids[:index]
        assert law.weights()[0].sum() == pytest.approx(1, abs=1e-6)
        assert [law.prob(t) for t in draft.token_ids[:index]] == [0] * index
        assert np.array_equal(law.at(None, 4), law.weights()[0]) and law.at(np.array([9]), 1)[0] == 0


def test_without_over_a_sparse_law() -> None:
    law = Without(Sparse(np.array([2, 5, 9]), np.array([Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)])), (5,))
    assert [law.prob(token_id) for token_id in (2, 5, 9, 3)] == [Fraction(3, 4), 0, Fraction(1, 4), 0]
    assert law.at(None, 3).tolist() == [0, 0, Fraction(3, 4)]
    with pytest.raises(ParameterError, match="positive probability"):
        Without(Sparse(np.array([2]), np.array([1.0])), (2,))


def test_ranked_children_and_one_draw() -> None:
    draft = drawn_tree(Siblings.RANKED_AND_ONE)
    assert draft.token_ids[:2] == (0, 1) and draft.token_ids[2] in (2, 3)
    assert draft.laws[:2] == (PointMass(0), PointMass(1)) and isinstance(draft.laws[2], Without)
    tied = Draft.empty(0).draw_children(
        floats(0.25, 0.25, 0.25, 0.25), KeyedNoise(1), 3, siblings=Siblings.RANKED_AND_ONE, parent=ROOT
    )
    assert tied.token_ids[:2] == (0, 1)


def test_a_point_mass_has_one_child() -> None:
    for siblings in Siblings:
        draft = drawn_tree(siblings, 3, law=PointMass(2))
        assert (draft.token_ids, draft.laws) == ((2,), (PointMass(2),))


def test_noise_consumed_by_recursive() -> None:
    draft = drawn_tree(Siblings.WITHOUT_REPLACEMENT, 2)
    noise = Scripted(uniforms={0: 0.999, 1: 0.999})
    verdict = get_verifier("recursive").verify(draft, [LAW] + [ROW] * 2, noise)
    assert verdict.num_accepted == 1 and noise.asked == [(COIN, 4, 0), (BONUS, 4, 0)]
    noise = Scripted(uniforms={0: 0.999, 1: 0.999})
    get_verifier("recursive").verify(draft, [floats(0, 0, 0, 0.5, 0.5)] + [ROW] * 2, noise)
    assert noise.asked == [(COIN, 4, 0), (COIN, 4, 1), (RESIDUAL, 4, 0)]


def test_noise_consumed_by_traversal_is_leaf_first() -> None:
    draft = drawn_tree(Siblings.WITHOUT_REPLACEMENT, 1)
    draft = draft.draw_children(LAW, KeyedNoise(5), 1, siblings=Siblings.WITHOUT_REPLACEMENT)
    noise = Scripted(uniforms={0: 0.999, 1: 0.999})
    row = floats(0.3, 0.3, 0.2, 0.1, 0.1)
    verdict = get_verifier("traversal").verify(draft, [row] * 3, noise)
    assert noise.asked[:2] == [(COIN, 4, 1), (COIN, 4, 0)] and noise.asked[-1] == (RESIDUAL, 4, 0)
    assert verdict.decisions[-1].outcome is Outcome.RECOVERED


@pytest.mark.parametrize("name", SCHEMES)
def test_a_bad_row_below_a_rejected_node_is_never_raised(name: str) -> None:
    draft = drawn_tree(SCHEMES[name], 2)
    never = [0.0] * 4 + [1.0]
    rows = [floats(*never), *(LawError("every token is masked"),) * 2]
    verdict = get_verifier(name).verify(draft, rows, KeyedNoise(1), telemetry=True)
    assert (verdict.token_ids, verdict.num_positions_agreeing) == ((4,), 0)
    with pytest.raises(LawError) as caught:
        get_verifier(name).verify(draft, [LAW, *rows[1:]], KeyedNoise(1))
    assert caught.value.position == 5


@pytest.mark.parametrize("name", SCHEMES)
def test_floats_follow_the_law(name: str) -> None:
    """3,000 seeds, [2, 1] trees in float32: P(first token = v) within Hoeffding's 1e-6 bound, 4 cells two-sided.

    8 exp(-2 N d^2) = 1e-6 gives d = 0.0515.
    """
    num_seeds, counts = 3000, Counter()
    for seed in range(num_seeds):
        noise = KeyedNoise(seed)
        draft = Draft.empty(4).draw_children(LAW, noise, 2, siblings=SCHEMES[name], parent=ROOT)
        for parent in range(len(draft)):
            draft = draft.draw_children(ROW, noise, 1, siblings=SCHEMES[name], parent=parent)
        rows = [ROW, *(LAW if node < 2 else ROW for node in range(len(draft)))]
        counts[get_verifier(name).verify(draft, rows, noise).token_ids[0]] += 1
    assert max(abs(counts[v] / num_seeds - p) for v, p in enumerate((0.1, 0.2, 0.3, 0.4))) < 0.0515


@pytest.mark.parametrize("num_children", [1, 2, 3, 4])
def test_the_division_factor_is_sound_and_nearly_the_smallest(num_children: int) -> None:
    target, draft = exact("0.1 0.2 0.3 0.4").probs, exact("0.4 0.3 0.2 0.1").probs

    def slack(rho: Fraction) -> Fraction:
        beta = np.minimum(target / rho, draft).sum()
        return rho * beta - 1 + (1 - beta) ** num_children

    rho = Fraction(division_factor(target, draft, num_children))
    assert 1 <= rho <= num_children and slack(rho) >= 0
    if num_children > 1:
        assert slack(rho - Fraction(8, STEPS)) < 0


def test_disjoint_laws_have_the_largest_division_factor() -> None:
    assert division_factor(exact("1 0").probs, exact("0 1").probs, 3) in (1, 3)


def test_the_selection_law_is_that_of_the_best_of_several() -> None:
    """Ratios p/q are 1/4, 2/3, 3/2 and 4; of two draws of q, F = .4, .7, .9, 1."""
    selection, followed = select(exact("0.1 0.2 0.3 0.4"), exact("0.4 0.3 0.2 0.1"), [0, 2])
    assert followed == 2
    assert list(selection.probs) == [Fraction(x, 100) for x in (16, 33, 32, 19)]
    tied, followed = select(exact("0.5 0.5"), exact("0.5 0.5"), [1, 0])
    assert followed == 1 and list(tied.probs) == [Fraction(1, 4), Fraction(3, 4)]
