"""The kernels on a GPU: whole vocabularies against the float64 reference, captured graphs, unwritten memory."""

import pytest
import torch

from draftproof.kernels import KeyedKernel, Requests, Rows, draw, reference
from draftproof.params import SamplingParams

pytestmark = pytest.mark.gpu

KINDS = [
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=0.8, top_p=0.3),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.9),
    SamplingParams(temperature=2.0, top_k=5000),
    SamplingParams(temperature=1.0, min_p=0.02),
    SamplingParams(temperature=0),
]


def logits_of(num_rows: int, vocab_size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(vocab_size)
    logits = torch.randn(num_rows, vocab_size, device="cuda", generator=generator) * 2
    raised = torch.randint(0, vocab_size, (num_rows, 50), device="cuda", generator=generator)
    return logits.scatter_add_(1, raised, torch.rand(num_rows, 50, device="cuda", generator=generator) * 10).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocab_size", [32_000, 151_936, 262_147])
def test_tokens_are_the_references_but_for_near_ties(dtype: torch.dtype, vocab_size: int) -> None:
    """A mixed batch. Near ties, of ratios within 1e-6 of each other, are expected in 1e-6 of rows: none here."""
    num_rows = 8 * len(KINDS)
    logits = logits_of(num_rows, vocab_size, dtype)
    rows = Rows.of_drafts(list(range(num_rows)), [[]] * num_rows, device="cuda")
    requests = Requests.of(KINDS * 8, list(range(num_rows)), device="cuda")
    token_ids, faults = draw(logits, rows, requests)
    assert not faults.any()
    assert torch.equal(token_ids.long(), reference.draw(logits, rows, requests, vocab_size))


def test_a_captured_graph_allocates_nothing_and_reads_new_logits() -> None:
    first, second = logits_of(12, 32_000, torch.bfloat16), logits_of(12, 32_000, torch.bfloat16).flip(0).contiguous()
    rows = Rows.of_drafts([5, 9, 13], [[1, 2, 3]] * 3, device="cuda")
    requests = Requests.of(KINDS[1:4], [7, 8, 9], device="cuda")
    kernel = KeyedKernel(first, rows, 32_000)
    expected = [kernel(logits, rows, requests).token_ids.clone() for logits in (first, second)]
    held = first.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verdict = kernel(held, rows, requests)
    before = torch.cuda.memory_allocated()
    for logits, tokens in zip((first, second), expected, strict=True):
        held.copy_(logits)
        graph.replay()
        assert torch.equal(verdict.token_ids, tokens)
    assert torch.cuda.memory_allocated() == before


def test_rows_do_not_depend_on_their_batch() -> None:
    logits = logits_of(64, 151_936, torch.bfloat16)
    rows = Rows.of_drafts(list(range(64)), [[]] * 64, device="cuda")
    requests = Requests.of([KINDS[1]] * 64, list(range(64)), device="cuda")
    together, _ = draw(logits, rows, requests)
    for index in (0, 17, 63):
        alone = Rows.of_drafts([index], [[]], device="cuda")
        one, _ = draw(logits[index : index + 1], alone, Requests.of([KINDS[1]], [index], device="cuda"))
        assert one.item() == together[index].item()
