"""The law of 10^7 draws at V = 151,936 against a known one, tails included.

Error budget: each of 6 tests fails a right kernel with probability 1e-6 at most, by a bound on the tail of its own
statistic (Bernstein's for a count of binomial law), so the file does with 6e-6. Seeds are fixed and never changed.
"""

import math

import pytest
import torch

from draftproof.kernels import KeyedKernel, Requests, Rows
from draftproof.params import SamplingParams

pytestmark = pytest.mark.gpu

VOCAB_SIZE = 151_936
ROWS = 2048
CALLS = 4883  # 10,000,384 draws
ALPHA = 1e-6


def slack(expected: float, num_events: int) -> float:
    """How far a binomial count strays from `expected` with probability at most ALPHA / num_events on both sides."""
    log_term = math.log(2 * num_events / ALPHA)
    return log_term / 3 + math.sqrt(log_term**2 / 9 + 2 * expected * log_term)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50)])
@pytest.mark.parametrize("shape", ["steps", "peaked"])
def test_counts_stay_within_their_bounds(params: SamplingParams, shape: str) -> None:
    """Single ids for the 200 likeliest, and classes of ids by rank and by place, down to probabilities of 1e-6."""
    ids = torch.arange(VOCAB_SIZE, device="cuda")
    order = (ids * 65_537) % VOCAB_SIZE  # rank of each id; 65,537 shares no factor with V
    depth = order.double().add(1).log2() if shape == "steps" else order.double().add(1).log() * 1.5
    logits = (-depth).bfloat16().expand(ROWS, -1).contiguous()
    z = logits[0].double()
    law = (z - z.max()).exp()
    if params.top_k > 0:
        law = law * (z >= z.sort(descending=True).values[params.top_k - 1])
    if params.top_p < 1:
        # Sorted by logit and then by id, as the filter ranks; a prefix reaches top_p.
        place = torch.argsort(z, descending=True, stable=True)
        before = law[place].cumsum(0) - law[place]
        law[place] = law[place] * (before < params.top_p * law.sum())
    law = law / law.sum()

    counts = torch.zeros(VOCAB_SIZE, dtype=torch.int64, device="cuda")
    rows = Rows.of_drafts(list(range(ROWS)), [[]] * ROWS, device="cuda")
    requests = Requests.of([params] * ROWS, list(range(ROWS)), device="cuda")
    kernel = KeyedKernel(logits, rows, VOCAB_SIZE)
    for _ in range(CALLS):
        verdict = kernel(logits, rows, requests)
        counts += torch.bincount(verdict.token_ids[:, 0], minlength=VOCAB_SIZE)
        rows.position.add_(ROWS)
    num_draws = ROWS * CALLS
    assert counts.sum() == num_draws
    assert counts[law == 0].sum() == 0

    likeliest = law.topk(200).indices
    bins = torch.where(order < 4096, 0, order // 4096) + 64 * (ids % 4)
    expected = torch.zeros(256, dtype=torch.float64, device="cuda").index_add_(0, bins, law) * num_draws
    seen = torch.zeros(256, dtype=torch.int64, device="cuda").index_add_(0, bins, counts)
    pairs = [*zip((law[likeliest] * num_draws).tolist(), counts[likeliest].tolist(), strict=True)]
    pairs += [*zip(expected.tolist(), seen.tolist(), strict=True)]
    for wanted, count in pairs:
        assert abs(count - wanted) <= slack(wanted, len(pairs)), (wanted, count)
