"""Rules that look at drafted tokens: allowed where the output can't depend on the draft, refused elsewhere."""

import numpy as np
import pytest

from draftproof.core import Dense, Draft, DrawnWith
from draftproof.drafters.stop_rule import MinDraftProb, cut
from draftproof.errors import DraftContractError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.verify import VERIFIERS, get_verifier

ALMOST_SURE = Dense(np.array([1e-9, 1.0, 1e-9]))
EVEN = Dense(np.array([0.3, 0.4, 0.3]))


def sampled(*, share_target_field=False):
    """A chain of three: a sure token, a doubtful one, a sure one."""
    draft, noise = Draft.empty(5), KeyedNoise(1)
    for law in (ALMOST_SURE, EVEN, ALMOST_SURE):
        draft = draft.draw(law, noise, share_target_field=share_target_field)
    return draft


def test_it_cuts_before_the_first_doubtful_token():
    kept = cut(sampled(), MinDraftProb(0.5), verifier_needs_draft_law=False)
    assert kept.token_ids == (1,) and kept.laws == (ALMOST_SURE,)
    assert len(cut(sampled(), MinDraftProb(0.2), verifier_needs_draft_law=False)) == 3


@pytest.mark.parametrize("name", [name for name, verifier in VERIFIERS.items() if verifier.needs_draft_law])
@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_ratio_tests_refuse_it_even_where_nothing_is_dropped(name, threshold):
    with pytest.raises(DraftContractError, match="length policy that chooses before drafting"):
        cut(sampled(), MinDraftProb(threshold), verifier_needs_draft_law=get_verifier(name).needs_draft_law)


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_the_verifier_refuses_a_cut_draft_that_reaches_it_all_the_same(name):
    kept = cut(sampled(), MinDraftProb(0.5), verifier_needs_draft_law=False)
    with pytest.raises(DraftContractError):
        get_verifier(name).accepts(kept)
    get_verifier("keyed").accepts(kept)
    get_verifier("match").accepts(kept)


def test_point_masses_may_be_cut_under_every_verifier():
    class KeepTwo:
        def num_kept(self, draft):
            return 2

    draft = Draft.of_token_ids(3, [7, 8, 9])
    kept = cut(draft, KeepTwo(), verifier_needs_draft_law=True)
    assert kept.token_ids == (7, 8) and kept.drawn_with is DrawnWith.NOTHING
    for verifier in VERIFIERS.values():
        verifier.accepts(kept)


def test_a_threshold_is_a_probability():
    with pytest.raises(ParameterError, match="draft_p_min"):
        MinDraftProb(1.5)
