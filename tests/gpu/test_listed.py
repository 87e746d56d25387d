"""`verify_rejection` on a GPU under top-k and min-p, rows bounded beside their tests: the tokens of the reference."""

import pytest
import torch

from tests.gpu.cases import LISTED, VOCAB_SIZE, check_captured, check_ratio_law

pytestmark = pytest.mark.gpu

MANY = LISTED * 3
"""Of more than 128 rows, each of which is raced in its list."""


@pytest.mark.parametrize("kind", ["logits", "point"])
def test_tokens_of_many_rows_are_the_references(kind: str) -> None:
    check_ratio_law(kind, torch.bfloat16, VOCAB_SIZE, MANY, (False,))


def test_tokens_of_few_rows_are_the_references() -> None:
    check_ratio_law("logits", torch.bfloat16, VOCAB_SIZE, LISTED)


def test_a_captured_graph_allocates_nothing_and_reads_new_logits() -> None:
    check_captured(MANY, block=False)
