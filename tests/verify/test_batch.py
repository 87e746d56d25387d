"""`verify_batch`: ragged drafts, padding, and errors that stay with their request."""

import numpy as np
import pytest

from draftproof.core import ROOT, Draft, PointMass, Verdict
from draftproof.errors import DraftContractError, LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.verify import VERIFIERS, get_verifier, verify_batch
from tests.verify.helpers import floats

LAW = floats(0.4, 0.3, 0.2, 0.1)


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "greedy"])
def test_each_request_is_what_it_is_alone(name: str) -> None:
    verifier = get_verifier(name)
    noises = [KeyedNoise(seed) for seed in range(30)]
    drafts = []
    for index, noise in enumerate(noises):
        draft = Draft.empty(index)
        for _ in range(index % 4):
            draft = draft.draw(LAW, noise)
        drafts.append(draft)
    rows = [[LAW] * (len(draft) + 1) for draft in drafts]
    batch = verify_batch(verifier, drafts, rows, noises)
    assert batch.token_ids.shape == (30, 4) and batch.token_ids.dtype == np.int64
    for index, result in enumerate(batch.results):
        alone = verifier.verify(drafts[index], rows[index], KeyedNoise(index))
        assert result == alone
        emitted = len(alone.token_ids)
        assert tuple(batch.token_ids[index, :emitted]) == alone.token_ids
        assert (batch.token_ids[index, emitted:] == -1).all()
        assert batch.num_accepted[index] == emitted - 1


def test_one_requests_error_is_its_own() -> None:
    """T46: request 0 has a NaN row, request 2 a draft that was drawn with the target's field."""
    noise = KeyedNoise(1)
    nan, good = floats(*[np.nan] * 4), Draft.of_token_ids(5, [0])
    shared = Draft.empty(5).draw(LAW, noise, share_target_field=True)
    batch = verify_batch(
        get_verifier("rejection"), [good, good, shared], [[nan] * 2, [PointMass(0)] * 2, [LAW] * 2], [noise] * 3
    )
    first, second, third = batch.results
    assert isinstance(first, LawError) and first.position == 5
    assert isinstance(second, Verdict) and second.token_ids == (0, 0)
    assert isinstance(third, DraftContractError)
    assert batch.num_accepted.tolist() == [0, 1, 0]
    assert batch.token_ids.tolist() == [[-1, -1], [0, 0], [-1, -1]]


def test_a_trees_width_is_its_depth() -> None:
    tree = Draft.of_token_ids(0, [0, 1, 2, 3], [ROOT, ROOT, 0, 0])
    batch = verify_batch(get_verifier("keyed"), [tree, Draft.empty(0)], [[LAW] * 5, [LAW]], [KeyedNoise(1)] * 2)
    assert batch.token_ids.shape == (2, 3)


def test_an_empty_batch() -> None:
    batch = verify_batch(get_verifier("keyed"), [], [], [])
    assert batch.token_ids.shape == (0, 1) and len(batch) == 0


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ParameterError, match="one length"):
        verify_batch(get_verifier("keyed"), [Draft.empty(0)], [[LAW]], [])
