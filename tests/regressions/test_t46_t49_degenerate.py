"""T46, T48, T49, T49b: rows and ids that are no law or no token."""

import numpy as np
import pytest
import torch

from draftproof.core import Draft, Outcome, PointMass, Sparse, Verdict
from draftproof.errors import LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.verify import get_verifier, verify_batch
from draftproof.verify.mutants import all_mutants
from tests.verify.helpers import floats

SAMPLING = ("keyed", "match", "rejection", "block")


@pytest.mark.parametrize("name", SAMPLING)
def test_t46_a_nan_row_is_an_error_that_names_the_position(name: str) -> None:
    """All-NaN target row, V = 20,000. Its neighbour in the batch goes on, and no count is ever negative."""
    nan, one = floats(*[np.nan] * 20_000), PointMass(19_999)
    draft = Draft.of_token_ids(41, [3])
    batch = verify_batch(get_verifier(name), [draft, draft], [[nan, nan], [one, one]], [KeyedNoise(1), KeyedNoise(2)])
    failed, went_on = batch.results
    assert isinstance(failed, LawError) and failed.position == 41
    assert isinstance(went_on, Verdict) and went_on.token_ids == (19_999,)
    assert batch.num_accepted.tolist() == [0, 0]


@pytest.mark.parametrize("name", SAMPLING)
def test_t46_a_nan_row_from_the_chain(name: str) -> None:
    chain = SamplerChain()
    row_params = chain.resolve(SamplingParams(), None, 4)
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [np.nan] * 4])
    rows = chain.laws(logits, row_params, [History([1]), History([1], [3])], errors="return")
    assert isinstance(rows[1], LawError)
    # Token 3 certain: the bad row is reached, at position 2.
    with pytest.raises(LawError) as caught:
        get_verifier(name).verify(Draft.of_token_ids(1, [3]), [PointMass(3), rows[1]], KeyedNoise(1))
    assert caught.value.position == 2


@pytest.mark.parametrize("name", SAMPLING)
def test_t48_a_placeholder_ends_the_draft(name: str) -> None:
    """Drafts [5, -1, 7] with p(5) = 1: accept 5, then a bonus from row 1 itself; 7 is not looked at."""
    draft = Draft.of_token_ids(0, [5, -1, 7])
    assert draft.token_ids == (5,)
    seen = set()
    for seed in range(200):
        verdict = get_verifier(name).verify(draft, [PointMass(5), floats(0.2, 0.3, 0.5)], KeyedNoise(seed))
        assert (verdict.token_ids[0], verdict.num_accepted, verdict.outcome) == (5, 1, Outcome.BONUS)
        seen.add(verdict.token_ids[1])
    assert seen == {0, 1, 2}


def test_t48_a_placeholder_in_a_tree_is_refused() -> None:
    with pytest.raises(ParameterError, match="every node"):
        Draft.of_token_ids(0, [5, -1], [-1, 0])


def test_t48_the_mutant_loses_the_last_token() -> None:
    mutant = {mutant.name: mutant for mutant in all_mutants()}["placeholder -1 counted as the last token"]
    assert 2 not in mutant.wrong().first_token_law()
    assert mutant.right().max_error == 0


@pytest.mark.parametrize("probs", [(0.5, 0.5), (1.0, 1e-30)])
@pytest.mark.parametrize("name", SAMPLING)
def test_t49_tokens_come_from_the_support(name: str, probs: tuple[float, float]) -> None:
    """Sparse support far from 0, a draft beside it: every emitted id has positive probability."""
    law = Sparse(np.array([1000, 70_000], dtype=np.int64), np.array(probs, dtype=np.float32))
    for seed in range(50):
        verdict = get_verifier(name).verify(Draft.of_token_ids(0, [5]), [law, law], KeyedNoise(seed))
        assert verdict.token_ids[0] in (1000, 70_000)


@pytest.mark.parametrize("name", (*SAMPLING, "greedy"))
def test_t49b_one_finite_logit(name: str) -> None:
    """The token with the only finite logit has probability 1, in every row, whatever the draft and its law."""
    chain = SamplerChain()
    row_params = chain.resolve(SamplingParams(), None, 5)
    logits = torch.full((2, 5), -torch.inf)
    logits[:, 3] = -7.0
    rows = chain.laws(logits, row_params, [History([1]), History([1], [0])])
    assert [row.prob(3) for row in rows] == [1, 1]
    for seed in range(20):
        noise = KeyedNoise(seed)
        draft = Draft.empty(0).draw(floats(0.3, 0.3, 0.2, 0.0, 0.2), noise)
        verdict = get_verifier(name).verify(draft, rows, noise)
        assert (verdict.token_ids, verdict.num_accepted) == ((3,), 0)


@pytest.mark.parametrize("name", SAMPLING)
def test_t49b_every_logit_masked(name: str) -> None:
    chain = SamplerChain()
    rows = chain.laws(
        torch.full((1, 4), -torch.inf), chain.resolve(SamplingParams(), None, 4), [History([1])], errors="return"
    )
    with pytest.raises(LawError):
        get_verifier(name).verify(Draft.empty(1), rows, KeyedNoise(1))
