"""A row's mask: the tokens that it forbids have no probability, and penalties and filters see what is left."""

import numpy as np
import pytest
import torch

from draftproof.core import PointMass, Sparse
from draftproof.errors import LawError, ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from tests.sampling.rows import same_bits

SIZE = 400
LOGITS = 2 * torch.randn(3, SIZE, generator=torch.Generator().manual_seed(11))
FIELDS = [
    {},
    {"temperature": 0.0},
    {"top_k": 3, "top_p": 0.8},
    {"min_p": 0.05, "repetition_penalty": 1.3},
    {"allowed_token_ids": list(range(0, SIZE, 3))},
    {"logit_bias": {5: 3.0, 6: -np.inf}, "bad_words": [], "presence_penalty": 0.7},
]


def mask_of(allowed: list[int], size: int = SIZE) -> np.ndarray:
    mask = np.zeros(size, dtype=np.bool_)
    mask[allowed] = True
    return mask


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ",".join(fields) or "plain")
def test_a_mask_is_a_list_of_allowed_tokens_for_one_row(fields: dict[str, object]) -> None:
    """The law under a mask has the bits of the law under the same ids as allowed_token_ids."""
    few, many = [3, 6, 9, 210, 399], [i for i in range(SIZE) if i % 50 != 1]
    given = fields.get("allowed_token_ids")
    row, histories = resolve(SamplingParams(**fields), None, SIZE), [History([3, 9, 9], [210])] * 3
    masked = SamplerChain().laws(LOGITS, row, histories, masks=[mask_of(few), None, mask_of(many)])
    for index, ids in ((0, few), (2, many)):
        both = [i for i in ids if given is None or i in given]
        listed = resolve(SamplingParams(**{**fields, "allowed_token_ids": both}), None, SIZE)
        assert same_bits(masked[index], SamplerChain().laws(LOGITS[[index]], listed, histories[:1])[0])
    assert same_bits(masked[1], SamplerChain().laws(LOGITS[[1]], row, histories[:1])[0])


def test_a_mask_of_one_token_leaves_a_point_mass_and_few_leave_a_sparse_law() -> None:
    row = resolve(SamplingParams(), None, SIZE)
    one, few = SamplerChain().laws(LOGITS[:2], row, [History([0])] * 2, masks=[mask_of([7]), mask_of([1, 2])])
    assert one == PointMass(7)
    assert isinstance(few, Sparse) and few.token_ids.tolist() == [1, 2]


def test_a_mask_without_a_true_is_an_error_of_its_row_alone() -> None:
    row = resolve(SamplingParams(), None, SIZE)
    masks = [None, mask_of([]), mask_of([4])]
    found = SamplerChain().laws(LOGITS, row, [History([0])] * 3, masks=masks, errors="return")
    assert isinstance(found[1], LawError) and "row 1 of 3: every token is masked" in str(found[1])
    assert not isinstance(found[0], LawError) and found[2] == PointMass(4)


def test_a_wider_mask_is_cut_off_and_a_wrong_one_is_refused() -> None:
    row, histories = resolve(SamplingParams(), None, SIZE), [History([0])]
    wide = mask_of([4, SIZE + 3], SIZE + 8)
    assert SamplerChain().laws(LOGITS[:1], row, histories, masks=[wide]) == [PointMass(4)]
    for wrong in (mask_of([4], SIZE - 1), np.ones(SIZE, dtype=np.int64), np.ones((1, SIZE), dtype=np.bool_)):
        with pytest.raises(ParameterError, match="masks="):
            SamplerChain().laws(LOGITS[:1], row, histories, masks=[wrong])
    with pytest.raises(ParameterError, match="one for each row"):
        SamplerChain().laws(LOGITS[:1], row, histories, masks=[wide, wide])
