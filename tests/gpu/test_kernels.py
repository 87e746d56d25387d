"""`verify_keyed` on a GPU at a whole vocabulary: the reference's tokens, captured graphs, unwritten memory, batches."""

from dataclasses import replace

import pytest
import torch

from draftproof.kernels import KeyedKernel, Requests, Rows, draw, reference
from tests.gpu.cases import KINDS, LENGTH, VOCAB_SIZE, emitted, keyed_tokens, logits_of, spoil

pytestmark = pytest.mark.gpu

COUNT = 2 * len(KINDS)


@pytest.fixture(scope="module")
def batch():
    """(logits, rows, requests, what the reference emits): drafts of the reference's own tokens, some of them wrong."""
    logits = logits_of(COUNT * (LENGTH + 1), VOCAB_SIZE, torch.bfloat16)
    requests = Requests.of(KINDS * 2, range(COUNT), device="cuda")
    starts = [30 + index for index in range(COUNT)]
    blank = Rows.of_drafts(starts, [[-1] * LENGTH] * COUNT, device="cuda")
    own = _rows_tokens(logits, blank, requests)
    drafts = [[(token + (node == index % (LENGTH + 2))) % VOCAB_SIZE for node, token in enumerate(tokens[:LENGTH])]
              for index, tokens in enumerate(own)]  # fmt: skip
    rows = Rows.of_drafts(starts, drafts, device="cuda")
    expected = keyed_tokens(logits, rows, requests, VOCAB_SIZE)
    assert {len(tokens) for tokens in expected} == set(range(1, LENGTH + 2))
    return logits, rows, requests, expected


def _rows_tokens(logits: torch.Tensor, rows: Rows, requests: Requests) -> list[list[int]]:
    return reference.draw(logits, rows, requests, VOCAB_SIZE).view(COUNT, LENGTH + 1).tolist()


def test_tokens_are_the_references(batch) -> None:
    """A mixed batch. Near ties, of ratios within 1e-6 of each other, are expected in 1e-6 of rows: none here."""
    logits, rows, requests, expected = batch
    kernel = KeyedKernel(logits, rows, VOCAB_SIZE)
    verdict = kernel(logits, rows, requests)
    assert not verdict.faults.any()
    assert emitted(verdict.token_ids) == expected
    spoil(kernel)
    assert emitted(kernel(logits, rows, requests).token_ids) == expected


def test_a_captured_graph_allocates_nothing_and_reads_new_logits(batch) -> None:
    logits, rows, requests, expected = batch
    kernel = KeyedKernel(logits, rows, VOCAB_SIZE)
    other = logits.flip(0).contiguous()
    others = kernel(other, rows, requests).token_ids.clone()
    held = logits.clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verdict = kernel(held, rows, requests)
    before = torch.cuda.memory_allocated()
    graph.replay()
    assert emitted(verdict.token_ids) == expected
    held.copy_(other)
    graph.replay()
    assert torch.equal(verdict.token_ids, others)
    assert torch.cuda.memory_allocated() == before


def test_rows_do_not_depend_on_their_batch(batch) -> None:
    """Alone, a row is read by another number of programs."""
    logits, rows, _, _ = batch
    count = logits.shape[0]
    params = [KINDS[index % len(KINDS)] for index in range(count)]
    together, _ = draw(
        logits, Rows.of_drafts(range(count), [[]] * count, device="cuda"),
        Requests.of(params, range(count), device="cuda"),
    )  # fmt: skip
    for index in (0, 1, 17, 38, 53, 82):
        alone = Rows.of_drafts([index], [[]], device="cuda")
        # Built for all kinds, so that one compilation serves them.
        mixed = replace(Requests.of([params[index]], [index], device="cuda"), races=True, top_p_alone=True, lists=True)
        one, _ = draw(logits[index : index + 1], alone, mixed)
        assert one.item() == together[index].item()
