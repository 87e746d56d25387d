"""`verify_rejection` on a GPU under top-p alone, where no row's bound is found: the reference's tokens, a graph."""

import pytest
import torch

from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows
from draftproof.kernels.ratio import reference as ratio_reference
from tests.gpu.cases import SETTLED, VOCAB_SIZE, check_captured, check_ratio_law, emitted, logits_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["logits", "point"])
def test_tokens_are_the_references(kind: str) -> None:
    check_ratio_law(kind, torch.bfloat16, VOCAB_SIZE, SETTLED, (False,))


def test_many_rows_are_tested_by_a_warp_each() -> None:
    check_ratio_law("point", torch.bfloat16, VOCAB_SIZE, SETTLED * 3, (False,))


def test_edges_that_tell_little() -> None:
    """Equal logits, in thousands and all over, and a few likely tokens: what lies between two edges is asked for."""
    params = SETTLED[1:4]
    for seed in range(4):
        logits = torch.round(logits_of(24, VOCAB_SIZE, torch.float32, seed))
        logits[8:16] = 0.5
        logits[16:, ::3000] += 14.0
        logits = logits.bfloat16()
        rows = Rows.of_drafts([7] * 24, [[]] * 24, device="cuda")
        requests = Requests.of(params * 8, range(100 * seed, 100 * seed + 24), device="cuda")
        law = DraftLaws.point_masses()
        expected = ratio_reference.verify(logits, law, rows, requests, VOCAB_SIZE, block=False)
        kernel = RatioKernel(logits, law, rows, VOCAB_SIZE, block=False)
        assert emitted(kernel(logits, law, rows, requests).token_ids) == expected


def test_a_captured_graph_allocates_nothing_and_reads_new_logits() -> None:
    check_captured(SETTLED, block=False)
