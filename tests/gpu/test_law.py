"""The laws of 10^7 draws each at V = 151,936 against known ones, tails included.

Error budget: each of 6 laws fails a right kernel with probability 1e-6 at most, by a bound on the tails of its own
counts (Bernstein's for a count of binomial law, split over 456 counts), so the file does with 6e-6. Seeds are fixed and
never changed.
"""

import math

import pytest
import torch

from draftproof.kernels import KeyedKernel, Requests, Rows
from draftproof.params import SamplingParams
from tests.gpu.cases import VOCAB_SIZE

pytestmark = pytest.mark.gpu

KINDS = [SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50)]
ROWS = 682  # of each kind in one call
CALLS = 14_664  # 10,000,848 draws of each kind
ALPHA = 1e-6


def slack(expected: float, num_events: int) -> float:
    """How far a binomial count strays from `expected` with probability at most ALPHA / num_events on both sides."""
    log_term = math.log(2 * num_events / ALPHA)
    return log_term / 3 + math.sqrt(log_term**2 / 9 + 2 * expected * log_term)


def law_of(z: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """[V] float64: the law of logits z [V] in float64."""
    law = (z - z.max()).exp()
    if params.top_k > 0:
        law = law * (z >= z.sort(descending=True).values[params.top_k - 1])
    if params.top_p < 1:
        # Sorted by logit and then by id, as the filter ranks; a prefix reaches top_p.
        place = torch.argsort(z, descending=True, stable=True)
        before = law[place].cumsum(0) - law[place]
        law[place] = law[place] * (before < params.top_p * law.sum())
    return law / law.sum()


@pytest.mark.parametrize("shape", ["steps", "peaked"])
def test_counts_stay_within_their_bounds(shape: str) -> None:
    """Single ids for the 200 likeliest, and classes of ids by rank and by place, down to probabilities of 1e-6."""
    ids = torch.arange(VOCAB_SIZE, device="cuda")
    order = (ids * 65_537) % VOCAB_SIZE  # rank of each id; 65,537 shares no factor with V
    depth = order.double().add(1).log2() if shape == "steps" else order.double().add(1).log() * 1.5
    row = (-depth).bfloat16()
    count = len(KINDS) * ROWS
    logits = row.expand(count, -1)  # every row lies at the same place
    rows = Rows.of_drafts(range(count), [[]] * count, device="cuda")
    requests = Requests.of([params for params in KINDS for _ in range(ROWS)], range(count), device="cuda")
    kernel = KeyedKernel(logits, rows, VOCAB_SIZE)
    kernel(logits, rows, requests)
    counts = torch.zeros(len(KINDS) * VOCAB_SIZE, dtype=torch.int32, device="cuda")
    places = torch.arange(len(KINDS), device="cuda").repeat_interleave(ROWS) * VOCAB_SIZE
    ones = torch.ones(count, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verdict = kernel(logits, rows, requests)
        counts.scatter_add_(0, places + verdict.token_ids[:, 0], ones)
        rows.position.add_(count)
    for _ in range(CALLS):
        graph.replay()

    bins = torch.where(order < 4096, 0, order // 4096) + 64 * (ids % 4)
    for params, seen in zip(KINDS, counts.view(len(KINDS), VOCAB_SIZE).long(), strict=True):
        law, num_draws = law_of(row.double(), params), ROWS * CALLS
        assert seen.sum() == num_draws
        assert seen[law == 0].sum() == 0
        likeliest = law.topk(200).indices
        expected = torch.zeros(256, dtype=torch.float64, device="cuda").index_add_(0, bins, law) * num_draws
        found = torch.zeros(256, dtype=torch.int64, device="cuda").index_add_(0, bins, seen)
        pairs = [*zip((law[likeliest] * num_draws).tolist(), seen[likeliest].tolist(), strict=True)]
        pairs += [*zip(expected.tolist(), found.tolist(), strict=True)]
        for wanted, times in pairs:
            assert abs(times - wanted) <= slack(wanted, len(pairs)), (params, wanted, times)
