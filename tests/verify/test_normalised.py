"""Weights that don't sum to 1 are refused where a ratio would divide by them (found by a biased engine test)."""

import numpy as np
import pytest

from draftproof.core import Dense, Draft, Sparse
from draftproof.errors import DraftContractError, LawError
from draftproof.noise import KeyedNoise
from draftproof.verify import VERIFIERS, get_verifier

EVEN = Dense(np.full(4, 0.25))
RATIO = [name for name, verifier in VERIFIERS.items() if verifier.needs_draft_law]
UNNORMALISED = [Dense(np.array([3.0, 1.0, 1.0, 1.0])), Sparse(np.array([0, 2]), np.array([0.5, 0.4]))]


def drafted(law):
    return Draft.empty(3).draw(law, KeyedNoise(0))


@pytest.mark.parametrize("law", UNNORMALISED, ids=["dense", "sparse"])
@pytest.mark.parametrize("name", RATIO)
def test_a_draft_law_that_does_not_sum_to_one_is_refused(name, law):
    with pytest.raises(DraftContractError, match="normalise the drafter's weights"):
        get_verifier(name).verify(drafted(law), [EVEN, EVEN], KeyedNoise(1))


@pytest.mark.parametrize("law", UNNORMALISED, ids=["dense", "sparse"])
@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "greedy"])
def test_a_target_row_that_does_not_sum_to_one_is_refused(name, law):
    with pytest.raises(LawError, match="a law's sum to 1"):
        get_verifier(name).verify(drafted(EVEN), [law, law], KeyedNoise(1))


@pytest.mark.parametrize("name", RATIO)
def test_rounding_is_not_refused(name):
    rows = Dense(np.full(300_000, np.float32(1 / 300_000)))
    verdict = get_verifier(name).verify(drafted(rows), [rows, rows], KeyedNoise(1))
    assert verdict.num_accepted == 1
