"""`verify_rejection` and `verify_block` on a GPU, drafts from logits: the reference's tokens, captured graphs."""

import pytest
import torch

from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows
from tests.gpu.cases import KINDS, VOCAB_SIZE, check_ratio_law, drafted

pytestmark = pytest.mark.gpu


def test_tokens_are_the_references() -> None:
    check_ratio_law("logits", torch.bfloat16, VOCAB_SIZE)


@pytest.mark.parametrize("block", [False, True])
def test_a_captured_graph_allocates_nothing_and_reads_new_logits(block: bool) -> None:
    count = 2 * len(KINDS)
    logits, draft_logits, tokens = drafted(count, VOCAB_SIZE, torch.bfloat16)
    other = drafted(count, VOCAB_SIZE, torch.bfloat16, seed=1)[0]
    rows = Rows.of_drafts([5] * count, tokens, device="cuda")
    requests = Requests.of(KINDS * 2, range(count), device="cuda")
    law = DraftLaws.dense(draft_logits, torch.full((count,), 0.8, device="cuda"))
    kernel = RatioKernel(logits, law, rows, VOCAB_SIZE, block=block)
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
