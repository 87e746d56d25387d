"""`verify_rejection` on a GPU under top-p alone, where no row's bound is found: the reference's tokens, a graph."""

import pytest
import torch

from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows
from draftproof.kernels.ratio import reference as ratio_reference
from tests.gpu.cases import SETTLED, VOCAB_SIZE, check_ratio_law, drafted, emitted, logits_of

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
    count = 2 * len(SETTLED)
    logits, draft_logits, tokens = drafted(count, VOCAB_SIZE, torch.bfloat16)
    other = drafted(count, VOCAB_SIZE, torch.bfloat16, seed=1)[0]
    rows = Rows.of_drafts([5] * count, tokens, device="cuda")
    requests = Requests.of(SETTLED * 2, range(count), device="cuda")
    law = DraftLaws.dense(draft_logits, torch.full((count,), 0.8, device="cuda"))
    kernel = RatioKernel(logits, law, rows, VOCAB_SIZE, block=False)
    expected = [kernel(each, law, rows, requests).token_ids.clone() for each in (logits, other)]
    held = logits.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verdict = kernel(held, law, rows, requests)
    before = torch.cuda.memory_allocated()
    for each, token_ids in zip((logits, other), expected, strict=True):
        held.copy_(each)
        graph.replay()
        assert torch.equal(verdict.token_ids, token_ids)
    assert torch.cuda.memory_allocated() == before
