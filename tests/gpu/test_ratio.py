"""`verify_rejection`, `verify_block` and `target_probs` on a GPU: whole vocabularies against the float64 references."""

import pytest
import torch

from draftproof.kernels import (
    DraftLaws,
    RatioKernel,
    Requests,
    Rows,
    TargetProbsKernel,
    reference,
    verify_block,
    verify_rejection,
)
from draftproof.kernels.ratio import reference as ratio_reference
from draftproof.params import SamplingParams

pytestmark = pytest.mark.gpu

KINDS = [
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.1, top_p=0.3),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.95),
    SamplingParams(temperature=2.0, top_k=5000),
    SamplingParams(temperature=1.0, min_p=0.02),
    SamplingParams(temperature=0),
]
LENGTH = 5


def drafted(num_requests: int, vocab_size: int, dtype: torch.dtype, seed: int = 0):
    """(target logits, draft logits, tokens drawn from the draft's law at T = 0.8)."""
    generator = torch.Generator(device="cuda").manual_seed(vocab_size + seed)
    shape = (num_requests * (LENGTH + 1), vocab_size)
    logits = torch.randn(shape, device="cuda", generator=generator) * 2
    raised = torch.randint(0, vocab_size, (shape[0], 50), device="cuda", generator=generator)
    logits.scatter_add_(1, raised, torch.rand(raised.shape, device="cuda", generator=generator) * 10)
    held = logits.view(num_requests, LENGTH + 1, vocab_size)[:, :LENGTH].reshape(-1, vocab_size)
    draft_logits = held + 0.5 * torch.randn(held.shape, device="cuda", generator=generator)
    logits, draft_logits = logits.to(dtype), draft_logits.to(dtype)
    rows = Rows.of_drafts([9] * len(held), [[]] * len(held), device="cuda")
    requests = Requests.of([SamplingParams(temperature=0.8)] * len(held), range(900, 900 + len(held)), device="cuda")
    tokens = ratio_reference.drawn(draft_logits, 0, rows, requests, vocab_size)
    return logits, draft_logits, tokens.view(num_requests, LENGTH).tolist()


def emitted(verdict) -> list[list[int]]:
    assert not verdict.faults.any()
    return [[token for token in row if token >= 0] for row in verdict.token_ids.tolist()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab_size", [32_000, 151_936])
def test_tokens_are_the_references(dtype: torch.dtype, vocab_size: int) -> None:
    """A mixed batch under both rules and three laws. Near ties are expected in some 1e-6 of decisions: none here."""
    count = 2 * len(KINDS)
    logits, draft_logits, tokens = drafted(count, vocab_size, dtype)
    rows = Rows.of_drafts([30 + index for index in range(count)], tokens, device="cuda")
    requests = Requests.of(KINDS * 2, range(count), device="cuda")
    probs = (draft_logits.double() / 0.8).softmax(dim=1)
    best = probs.topk(64, dim=1)
    ids, order = best.indices.int().sort(dim=1)
    values = (best.values / best.values.sum(dim=1, keepdim=True)).float().gather(1, order)
    sparse_tokens = ids.gather(1, values.argmax(dim=1, keepdim=True)).view(count, LENGTH).tolist()
    sparse_rows = Rows.of_drafts([30 + index for index in range(count)], sparse_tokens, device="cuda")
    for law, law_rows in (
        (DraftLaws.dense(draft_logits, torch.full((count,), 0.8, device="cuda")), rows),
        (DraftLaws.dense_probs(probs.float()), rows),
        (DraftLaws.point_masses(), rows),
        (DraftLaws.sparse(ids, values), sparse_rows),
    ):
        for verify, block in ((verify_rejection, False), (verify_block, True)):
            expected = ratio_reference.verify(logits, law, law_rows, requests, vocab_size, block=block)
            assert emitted(verify(logits, law, law_rows, requests)) == expected


@pytest.mark.parametrize("block", [False, True])
def test_a_captured_graph_allocates_nothing_and_reads_new_logits(block: bool) -> None:
    first = drafted(7, 32_000, torch.bfloat16)
    logits, draft_logits, tokens = first
    other = drafted(7, 32_000, torch.bfloat16, seed=1)[0]
    rows = Rows.of_drafts([5] * 7, tokens, device="cuda")
    requests = Requests.of(KINDS, range(7), device="cuda")
    law = DraftLaws.dense(draft_logits, torch.full((7,), 0.8, device="cuda"))
    kernel = RatioKernel(logits, law, rows, 32_000, block=block)
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


@pytest.mark.parametrize("block", [False, True])
def test_unwritten_memory_is_not_read(block: bool) -> None:
    logits, draft_logits, tokens = drafted(7, 32_000, torch.bfloat16)
    rows = Rows.of_drafts([5] * 7, tokens, device="cuda")
    requests = Requests.of(KINDS, range(7), device="cuda")
    law = DraftLaws.dense(draft_logits, torch.full((7,), 0.8, device="cuda"))
    kernel = RatioKernel(logits, law, rows, 32_000, block=block)
    first = kernel(logits, law, rows, requests).token_ids.clone()
    scratch = [*kernel._scratch, *kernel._draft_scratch, *kernel._rows, *kernel._node_state, *kernel._brackets]
    for tensor in [*scratch, *kernel._prefixes, kernel._residual_masses, *kernel._racers]:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 0x7FFFFFF)
    assert torch.equal(kernel(logits, law, rows, requests).token_ids, first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_laws_are_within_1e_6(dtype: torch.dtype) -> None:
    logits, _, tokens = drafted(len(KINDS), 151_936, dtype)
    rows = Rows.of_drafts([5] * len(KINDS), tokens, device="cuda")
    requests = Requests.of(KINDS, range(len(KINDS)), device="cuda")
    out = torch.full(logits.shape, float("nan"), device="cuda")
    faults = TargetProbsKernel(logits, rows, 151_936)(logits, rows, requests, out)
    assert not faults.any()
    law = reference.probs(logits, rows, requests, 151_936)
    assert (out - law).abs().max().item() < 1e-6
    # Where float32 and float64 sums disagree about top-p's last token, it is a token at the edge.
    assert ((out == 0) != (law == 0)).sum().item() <= len(rows.request)
