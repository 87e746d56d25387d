"""`target_probs` on a GPU: within 1e-6 of the float64 law at whole vocabularies, bad rows NaN throughout."""

from dataclasses import replace

import pytest
import torch

from benchmarks.verify_ratio import is_law
from draftproof.kernels import Requests, Rows, TargetProbsKernel, reference
from tests.gpu.cases import KINDS, VOCAB_SIZE, logits_of, spoil

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("dtype", "vocab_size"), [(torch.bfloat16, VOCAB_SIZE), (torch.float32, 32_000)])
def test_laws_are_within_1e_6(dtype: torch.dtype, vocab_size: int) -> None:
    """Where float32 and float64 sums disagree about top-p's last token, the masses say that it was a near tie."""
    count = 4 * len(KINDS)
    logits = logits_of(count, vocab_size, dtype)
    clean = logits.clone()
    logits[3, 7], logits[11, 9] = float("nan"), float("inf")
    rows = Rows.of_drafts([5] * count, [[]] * count, device="cuda")
    requests = Requests.of(KINDS * 4, range(count), device="cuda")
    wider = Requests.of([replace(params, top_p=1.0) for params in KINDS] * 4, range(count), device="cuda")
    out = torch.full(logits.shape, float("nan"), device="cuda")
    kernel = TargetProbsKernel(logits, rows, vocab_size)
    spoil(kernel)
    faults = kernel(logits, rows, requests, out)
    assert faults.nonzero().flatten().tolist() == [3, 11]
    assert out[[3, 11]].isnan().all()
    good = [row for row in range(count) if row not in (3, 11)]
    laws = [reference.probs(clean, rows, each, vocab_size) for each in (requests, wider)]
    for row in good:
        part = slice(row, row + 1)
        assert is_law(out[part], laws[0][part], laws[1][part], KINDS[row % len(KINDS)].top_p)
