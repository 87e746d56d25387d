"""What `target_probs` must write, small enough for the interpreter."""

import numpy as np
import torch

from draftproof.params import SamplingParams
from tests.kernels.ratio_cases import DEVICE, FILTERS, TILE, Case


def check_target_probs(kernels):
    """Within 1e-6 of the chain's laws, filtered tokens exactly 0, nothing written beyond the vocabulary."""
    for step in (0.0, 0.5):
        case = Case(
            "point", [*FILTERS, SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05)], [0] * 8, seed=14, step=step
        )
        writes_laws(kernels, case)


def check_parts(kernels):
    """Several programs a row, each with a share of the many equal logits at top-p's edge; and with too many to list."""
    params = [SamplingParams(temperature=1.0, top_p=top_p) for top_p in (0.3, 0.6, 0.95)]
    for step in (0.05, 0.5):
        writes_laws(kernels, Case("point", params, [0] * 3, seed=17, spread=1.0, step=step, vocab_size=4096))


def check_negative_ties(kernels):
    """Equal 16-bit logits below 0 at top-p's edge: by a bracket's list, by top-k's, and by passes over the row."""
    params = [SamplingParams(temperature=1.0, top_p=top_p) for top_p in (0.3, 0.6)]
    params += [SamplingParams(temperature=1.0, top_k=40, top_p=0.5)]
    for dtype in (torch.bfloat16, torch.float16):
        case = Case("point", params, [0] * 3, seed=19, step=0.5, dtype=dtype)
        case.logits -= 9
        writes_laws(kernels, case)
    case = Case("point", params[:1], [0], seed=19, vocab_size=9000, spread=0.0, dtype=torch.bfloat16)
    case.logits -= 2
    writes_laws(kernels, case)


def check_many_ties(kernels):
    """More equal tokens than a list holds, of which biased ones stand elsewhere; zeros of either sign."""
    vocab_size, device = 9000, DEVICE
    logits = torch.full((3, vocab_size), -2.0)
    logits[0, ::7] -= 1.0
    logits[1] = torch.where(torch.arange(vocab_size) % 3 > 0, 0.0, -0.0)
    biased = {4000: 1.5, 4001: 1.5, 4999: 0.25, 20: 6.0}
    for token_id, bias in biased.items():
        logits[:, token_id] = -2.0 - bias if token_id != 20 else 1.0
        logits[1, token_id] += 2.0
    for top_p in (0.45, 0.75):
        params = SamplingParams(temperature=1.0, top_p=top_p, logit_bias=biased)
        rows = kernels.Rows.of_drafts([1, 2, 3], [[], [], []], device=device)
        requests = kernels.Requests.of([params] * 3, [1, 2, 3], device=device, changed=True)
        changes = kernels.Changes.of([params] * 3, [[1]] * 3, [[]] * 3, device=device)
        out = torch.zeros(3, vocab_size, device=device)
        faults = kernels.target_probs(logits.bfloat16().to(device), rows, requests, out, changes=changes)
        assert not faults.any()
        z = logits.double()
        for token_id, bias in biased.items():
            z[:, token_id] += bias
        law = (z + 0.0).softmax(dim=1)
        ranked, order = law.sort(dim=1, descending=True, stable=True)
        kept = torch.zeros(z.shape, dtype=torch.bool).scatter_(1, order, ranked.cumsum(dim=1) - ranked < top_p)
        law = torch.where(kept, law, 0.0)
        assert ((out.cpu() > 0) == kept).all()
        assert (out.cpu() - law / law.sum(dim=1, keepdim=True)).abs().max() < 1e-6


def check_samples(kernels):
    """Rows of more tokens than a sample has: flat, a few likely neighbours, two values, and what no sample shows."""
    tops = (0.9, 0.3, 0.3, 0.95, 0.9, 0.8, 0.6, 0.966)
    params = [SamplingParams(temperature=0.9, top_p=top_p) for top_p in tops]
    case = Case("point", params, [0] * 8, seed=18, spread=1.5, step=1 / 32, vocab_size=9000)
    case.logits[1, 5000:5040] += torch.linspace(14.0, 4.0, 40)
    case.logits[2] = 1.5 + 1e-3 * (case.logits[2] > 0)
    chunk = torch.arange(9000) // 64
    sampled = torch.isin(chunk, torch.arange(64) * 144 // 64)
    case.logits[3:7] = torch.where(sampled, case.logits[3:7] / 20 - 4, case.logits[3:7])
    case.logits[7] = torch.where(sampled, case.logits[7], case.logits[7] / 3 - 2)
    case.logits[3:5] += torch.linspace(0.0, 0.03, 9000)
    writes_laws(kernels, case)


def check_samples_of_nothing(kernels):
    """Rows of which a mask leaves few tokens, none or one of them in the sample; and rows of which it leaves half."""
    vocab_size = 9000
    logits = 2.0 * torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(27))
    sampled = torch.isin(torch.arange(vocab_size) // 64, torch.arange(64) * 144 // 64).nonzero()[:, 0]
    allowed = torch.zeros(6, 282 * 32, dtype=torch.bool)
    for row, count in enumerate((0, 0, 1, 1)):
        others = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(row))
        others = others[~torch.isin(others, sampled)]
        allowed[row, others[:40]] = True
        allowed[row, sampled[100 : 100 + count]] = True
    allowed[4:, :vocab_size:2] = True
    words = (allowed.view(6, 282, 32).long() << torch.arange(32)).sum(2)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    for top_p in (0.5, 0.9):
        params = SamplingParams(temperature=1.0, top_p=top_p)
        rows = kernels.Rows.of_drafts(list(range(6)), [[]] * 6, device=DEVICE)
        requests = kernels.Requests.of([params] * 6, range(6), device=DEVICE, masked=True)
        out = torch.zeros(6, vocab_size, device=DEVICE)
        faults = kernels.target_probs(logits.to(DEVICE), rows, requests, out, allowed=words.to(DEVICE))
        assert not faults.any()
        law = torch.where(allowed[:, :vocab_size], logits.double(), -torch.inf).softmax(dim=1)
        ranked, order = law.sort(dim=1, descending=True, stable=True)
        kept = torch.zeros(law.shape, dtype=torch.bool).scatter_(1, order, ranked.cumsum(dim=1) - ranked < top_p)
        law = torch.where(kept, law, 0.0)
        assert ((out.cpu() > 0) == kept).all()
        assert (out.cpu() - law / law.sum(dim=1, keepdim=True)).abs().max() < 1e-6


def check_sums(kernels):
    """What programs have weighed above a row's edges, and listed between two of them, together.

    Samples are counted before it is known which rows are wanted, or later where rows are many.
    """
    params = [SamplingParams(temperature=1.0, top_p=top_p) for top_p in (0.5, 0.9)]
    case = Case("point", params, [0] * 2, seed=26, spread=1.0, vocab_size=9000)
    logits, rows = case.logits.to(DEVICE), case.rows(kernels)
    kernel = kernels.TargetProbsKernel(logits, rows, 9000, tile=TILE)
    z = logits.double()
    weights = (z - z.amax(dim=1, keepdim=True)).exp()
    for early in (True, False):
        kernel._bounding = kernel._bounding._replace(early=early)
        kernel(logits, rows, case.requests(kernels), torch.zeros(2, 9000, device=DEVICE))
        has_weighed(kernel, logits, z, weights)


def has_weighed(kernel, logits, z, weights):
    edges, sums, listed, places, *_ = kernel._bounding.bracket
    for index, top_p in enumerate((0.5, 0.9)):
        masses = [float(weights[index][z[index] >= edge].sum()) for edge in edges[index, :4].tolist()]
        for found, mass in zip(sums[index, :4].tolist(), masses, strict=True):
            assert abs(found / 2.0**43 - mass) <= 1e-5 * mass
        reached = sum(mass >= top_p * float(weights[index].sum()) for mass in masses)
        assert 0 < reached < 4
        inside = (z[index] >= edges[index, reached - 1]) & (z[index] < edges[index, reached])
        count = int(inside.sum())
        assert count < 2200
        assert int(sums[index, 8]) == count
        assert places[index, :count].sort().values.tolist() == inside.nonzero().flatten().tolist()
        assert torch.equal(listed[index, :count], logits[index, places[index, :count].long()].float())


def writes_laws(kernels, case):
    num_rows, vocab_size = case.logits.shape
    rows, requests = case.rows(kernels), case.requests(kernels)
    out = torch.full((num_rows, vocab_size + 10), 7.0, device=DEVICE)
    logits = case.logits.to(DEVICE)
    kernel = kernels.TargetProbsKernel(logits, rows, vocab_size, tile=TILE)
    faults = kernel(logits, rows, requests, out)
    assert not faults.any()
    assert (out[:, vocab_size:] == 7.0).all()
    for index in range(num_rows):
        law = np.asarray(case.target_laws(index)[0].at(None, vocab_size), dtype=np.float64)
        found = out[index, :vocab_size].cpu().double().numpy()
        assert np.abs(found - law).max() < 1e-6
        assert ((found == 0) == (law == 0)).all()


def check_target_probs_of_bad_rows(kernels):
    """NaN throughout, and a fault; masked and biased tokens elsewhere."""
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(15))
    logits[1, 50] = float("nan")
    rows = kernels.Rows.of_drafts([1, 2, 3], [[], [], []], device=DEVICE)
    words = torch.full((3, 4), -1, dtype=torch.int32)
    words[2] = 0
    words[0, 1] = 0
    params = SamplingParams(logit_bias={3: 2.0, 40: 9.0})
    requests = kernels.Requests.of([params] * 3, [1, 2, 3], device=DEVICE, changed=True)
    changes = kernels.Changes.of([params] * 3, [[1]] * 3, [[]] * 3, device=DEVICE)
    out = torch.zeros(3, 100, device=DEVICE)
    faults = kernels.target_probs(logits.to(DEVICE), rows, requests, out, allowed=words.to(DEVICE), changes=changes)
    assert faults.tolist() == [0, 1, 2]
    assert out[1:].isnan().all()
    logits[0, 3] += 2.0
    logits[0, 32:64] = -torch.inf
    assert torch.allclose(out[0].cpu(), logits[0].softmax(dim=0), atol=1e-6, rtol=0)
    assert (out[0, 32:64] == 0).all()


def check_greedy_beside_a_hint(kernels):
    """Greedy requests in a kernel that was told that there are none."""
    logits = torch.round(torch.randn(2, 400, generator=torch.Generator().manual_seed(8)) * 2).to(DEVICE)
    rows = kernels.Rows.of_drafts([3, 3], [[], []], device=DEVICE)
    requests = kernels.Requests.of([SamplingParams()] * 2, [1, 2], device=DEVICE)
    assert requests.unfiltered
    requests.temperature.zero_()
    out = torch.zeros(2, 400, device=DEVICE)
    assert not kernels.target_probs(logits, rows, requests, out).any()
    assert out.argmax(dim=1).tolist() == [row.index(max(row)) for row in logits.tolist()]
    assert (out > 0).sum(dim=1).tolist() == [1, 1]


CHECKS = [
    check_target_probs,
    check_parts,
    check_negative_ties,
    check_sums,
    check_many_ties,
    check_samples,
    check_samples_of_nothing,
    check_greedy_beside_a_hint,
    check_target_probs_of_bad_rows,
]
