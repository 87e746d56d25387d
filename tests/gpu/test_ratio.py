"""`verify_rejection` and `verify_block` on a GPU, drafts from logits: the reference's tokens, captured graphs."""

import pytest
import torch

from tests.gpu.cases import KINDS, VOCAB_SIZE, check_captured, check_ratio_law

pytestmark = pytest.mark.gpu


def test_tokens_are_the_references() -> None:
    check_ratio_law("logits", torch.bfloat16, VOCAB_SIZE)


@pytest.mark.parametrize("block", [False, True])
def test_a_captured_graph_allocates_nothing_and_reads_new_logits(block: bool) -> None:
    check_captured(KINDS, block)
