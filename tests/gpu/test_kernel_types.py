"""Other types and sizes of logits than bfloat16 at 151,936: float16, float32, odd vocabularies, padded rows."""

import pytest
import torch

from draftproof.kernels import Requests, Rows, draw, reference
from tests.gpu.cases import KINDS, logits_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("dtype", "vocab_size", "padding"), [(torch.float16, 32_000, 0), (torch.float32, 262_147, 61)])
def test_tokens_are_the_references(dtype: torch.dtype, vocab_size: int, padding: int) -> None:
    num_rows = 8 * len(KINDS)
    logits = logits_of(num_rows, vocab_size + padding, dtype)
    rows = Rows.of_drafts(range(num_rows), [[]] * num_rows, device="cuda")
    requests = Requests.of(KINDS * 8, range(num_rows), device="cuda")
    token_ids, faults = draw(logits, rows, requests, vocab_size=vocab_size)
    assert not faults.any()
    assert torch.equal(token_ids.long(), reference.draw(logits, rows, requests, vocab_size))
