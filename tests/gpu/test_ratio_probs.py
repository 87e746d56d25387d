"""`verify_rejection` and `verify_block` on a GPU, drafts from dense probabilities."""

import pytest
import torch

from tests.gpu.cases import VOCAB_SIZE, check_ratio_law

pytestmark = pytest.mark.gpu


def test_tokens_are_the_references() -> None:
    check_ratio_law("probs", torch.bfloat16, VOCAB_SIZE)
