"""What the GPU tests of the kernels share: logits of whole vocabularies, mixed parameters, drafts, scratch to spoil.

A kernel is compiled anew for every dtype, size class and set of parameters, which costs far more than running it: so
each file here has one or two shapes and mixes all parameters in them, and `make test-gpu` runs the files side by side.
"""

import torch

from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows, reference
from draftproof.kernels.ratio import reference as ratio_reference
from draftproof.params import SamplingParams

VOCAB_SIZE = 151_936
KINDS = [
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.1, top_p=0.3),
    SamplingParams(temperature=1.5, top_k=20, top_p=0.9),
    SamplingParams(temperature=2.0, top_k=5000),
    SamplingParams(temperature=1.0, min_p=0.02),
    SamplingParams(temperature=0),
]
SETTLED = [*KINDS[:3], SamplingParams(temperature=1.0, top_p=0.9), KINDS[-1]]
"""Parameters whose rows `rejection` settles without a bound where they are few."""
LISTED = KINDS[3:]
"""Parameters whose rows `rejection` bounds beside their tests, and races in their lists where they are many."""
LENGTH = 5


def logits_of(num_rows: int, vocab_size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """[rows, V]: normal, of standard deviation 2, with 50 random tokens a row raised by up to 10."""
    generator = torch.Generator(device="cuda").manual_seed(vocab_size + seed)
    logits = torch.randn(num_rows, vocab_size, device="cuda", generator=generator) * 2
    raised = torch.randint(0, vocab_size, (num_rows, 50), device="cuda", generator=generator)
    return logits.scatter_add_(1, raised, torch.rand(num_rows, 50, device="cuda", generator=generator) * 10).to(dtype)


def drafted(
    num_requests: int, vocab_size: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """(target logits, draft logits, tokens drawn from the draft's law at T = 0.8): LENGTH of them a request."""
    logits = logits_of(num_requests * (LENGTH + 1), vocab_size, torch.float32, seed)
    generator = torch.Generator(device="cuda").manual_seed(seed)
    held = logits.view(num_requests, LENGTH + 1, vocab_size)[:, :LENGTH].reshape(-1, vocab_size)
    draft_logits = held + 0.5 * torch.randn(held.shape, device="cuda", generator=generator)
    logits, draft_logits = logits.to(dtype), draft_logits.to(dtype)
    rows = Rows.of_drafts([9] * len(held), [[]] * len(held), device="cuda")
    requests = Requests.of([KINDS[0]] * len(held), range(900, 900 + len(held)), device="cuda")
    tokens = ratio_reference.drawn(draft_logits, 0, rows, requests, vocab_size)
    return logits, draft_logits, tokens.view(num_requests, LENGTH).tolist()


def emitted(token_ids: torch.Tensor) -> list[list[int]]:
    return [[token for token in row if token >= 0] for row in token_ids.tolist()]


def spoil(kernel: object) -> None:
    """NaN, or a large integer, into every tensor that a kernel owns."""

    def tensors(value: object) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        return [tensor for part in value for tensor in tensors(part)] if isinstance(value, tuple) else []

    found = [tensor for value in vars(kernel).values() for tensor in tensors(value)]
    assert len(found) > 8
    for tensor in found:
        tensor.fill_(float("nan") if tensor.is_floating_point() else 0x7F if tensor.dtype == torch.int8 else 0x7FFF)


def keyed_tokens(logits: torch.Tensor, rows: Rows, requests: Requests, vocab_size: int) -> list[list[int]]:
    """What a chain emits by the float64 reference, request by request."""
    tokens, offsets, drafted_ids = (
        reference.draw(logits, rows, requests, vocab_size).tolist(),
        rows.offsets.tolist(),
        rows.drafted.tolist(),
    )
    found = []
    for first, last in zip(offsets, offsets[1:], strict=False):
        row = first
        while row + 1 < last and tokens[row] == drafted_ids[row + 1]:
            row += 1
        found.append(tokens[first : row + 1])
    return found


def check_ratio_law(
    kind: str,
    dtype: torch.dtype,
    vocab_size: int,
    kinds: list[SamplingParams] = KINDS,
    blocks: tuple[bool, ...] = (False, True),
) -> None:
    """A mixed batch under both rules. Near ties are expected in some 1e-6 of decisions: none here."""
    count = 2 * len(kinds)
    logits, draft_logits, tokens = drafted(count, vocab_size, dtype)
    requests = Requests.of(kinds * 2, range(count), device="cuda")
    probs = (draft_logits.double() / 0.8).softmax(dim=1)
    if kind == "sparse":
        best = probs.topk(64, dim=1)
        ids, order = best.indices.int().sort(dim=1)
        values = (best.values / best.values.sum(dim=1, keepdim=True)).float().gather(1, order)
        tokens = ids.gather(1, values.argmax(dim=1, keepdim=True)).view(count, LENGTH).tolist()
        law = DraftLaws.sparse(ids, values)
    elif kind == "logits":
        law = DraftLaws.dense(draft_logits, torch.full((count,), 0.8, device="cuda"))
    else:
        law = DraftLaws.dense_probs(probs.float()) if kind == "probs" else DraftLaws.point_masses()
    rows = Rows.of_drafts([30 + index for index in range(count)], tokens, device="cuda")
    lengths = set()
    for block in blocks:
        expected = ratio_reference.verify(logits, law, rows, requests, vocab_size, block=block)
        kernel = RatioKernel(logits, law, rows, vocab_size, block=block)
        verdict = kernel(logits, law, rows, requests)
        assert not verdict.faults.any()
        assert emitted(verdict.token_ids) == expected
        lengths |= set(map(len, expected))
        spoil(kernel)
        assert emitted(kernel(logits, law, rows, requests).token_ids) == expected
    assert len(lengths) > 2


def check_captured(kinds: list[SamplingParams], block: bool) -> None:
    """A captured graph reads new logits and allocates nothing."""
    count = 2 * len(kinds)
    logits, draft_logits, tokens = drafted(count, VOCAB_SIZE, torch.bfloat16)
    other = drafted(count, VOCAB_SIZE, torch.bfloat16, seed=1)[0]
    rows = Rows.of_drafts([5] * count, tokens, device="cuda")
    requests = Requests.of(kinds * 2, range(count), device="cuda")
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
