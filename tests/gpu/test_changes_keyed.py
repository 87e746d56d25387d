"""Penalties, biases and masks inside the kernels on a GPU, against the library's chain: `keyed`."""

import pytest
import torch

from draftproof.kernels import Changes, KeyedKernel, Requests, Rows, reference
from draftproof.params import SamplingParams
from tests.gpu.cases import VOCAB_SIZE, logits_of
from tests.gpu.changed import FILTERS, check_changes

pytestmark = pytest.mark.gpu


def test_tokens_are_the_chains() -> None:
    check_changes("keyed")


def test_tokens_without_filters_are_the_chains() -> None:
    """Special tokens are left out when quads are scored, not before."""
    check_changes("keyed", FILTERS[:1] * 4)


KINDS = [SamplingParams(**each) for each in (*FILTERS, {"temperature": 1.0, "top_k": 20, "top_p": 0.9})]
COUNT = 13 * len(KINDS)


def test_masks_of_whole_tiles_and_parts() -> None:
    """Runs of a thousand tokens that are allowed, not allowed, or allowed one by one."""
    source = torch.Generator("cuda").manual_seed(31)
    kinds = torch.randint(0, 3, (COUNT, VOCAB_SIZE // 1000 + 1), generator=source, device="cuda")
    kinds = kinds.repeat_interleave(1000, dim=1)[:, :VOCAB_SIZE]
    few = torch.rand(COUNT, VOCAB_SIZE, generator=source, device="cuda") < 0.01
    allowed = (kinds == 0) | ((kinds == 2) & few)
    bits = torch.zeros(COUNT, -(-VOCAB_SIZE // 32) * 32, dtype=torch.int64, device="cuda")
    bits[:, :VOCAB_SIZE] = allowed.long()
    words = (bits.view(COUNT, -1, 32) << torch.arange(32, device="cuda")).sum(2)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    logits = logits_of(COUNT, VOCAB_SIZE, torch.bfloat16)
    rows = Rows.of_drafts([5] * COUNT, [[]] * COUNT, device="cuda")
    requests = Requests.of(KINDS * 13, range(COUNT), device="cuda")
    verdict = KeyedKernel(logits, rows, VOCAB_SIZE)(logits, rows, requests, allowed=words)
    masked = torch.where(allowed, logits, -torch.inf)
    assert not verdict.faults.any()
    assert verdict.token_ids[:, 0].tolist() == reference.draw(masked, rows, requests, VOCAB_SIZE).tolist()


def test_bias_on_the_likeliest_tokens() -> None:
    """Likely tokens are moved up and down, far down in every other row, as are those of most tiles."""
    logits = logits_of(COUNT, VOCAB_SIZE, torch.bfloat16)
    changed = logits.float()
    likely = logits.float().topk(150, dim=1).indices
    moves = torch.rand(likely.shape, generator=torch.Generator("cuda").manual_seed(32), device="cuda") * 8 - 6
    moves[::2] -= 30.0
    changed.scatter_add_(1, likely, moves)
    biases = [dict(zip(ids, values, strict=True)) for ids, values in zip(likely.tolist(), moves.tolist(), strict=True)]
    params = [
        SamplingParams(temperature=kind.temperature, top_k=kind.top_k, top_p=kind.top_p, logit_bias=bias)
        for kind, bias in zip(KINDS * 13, biases, strict=True)
    ]
    rows = Rows.of_drafts([5] * COUNT, [[]] * COUNT, device="cuda")
    requests = Requests.of(params, range(COUNT), device="cuda", changed=True)
    changes = Changes.of(params, [[]] * COUNT, [[]] * COUNT, device="cuda")
    kernel = KeyedKernel(logits, rows, VOCAB_SIZE, num_exceptions=changes.num_exceptions(rows))
    verdict = kernel(logits, rows, requests, changes=changes)
    assert not verdict.faults.any()
    assert verdict.token_ids[:, 0].tolist() == reference.draw(changed, rows, requests, VOCAB_SIZE).tolist()
