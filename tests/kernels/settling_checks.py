"""What `verify_rejection` must do under top-p alone, where no row's bound is found, on the interpreter."""

import importlib
import math
from contextlib import contextmanager

import torch

from draftproof.core import Draft
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History
from draftproof.verify import get_verifier
from tests.kernels.ratio_cases import CHAIN, DEVICE, Case, agrees, check_faults, emitted


def params_of(*top_ps):
    return [SamplingParams(temperature=1.0, top_p=top_p) for top_p in top_ps]


def check_settled_batch(kernels):
    """Greedy rows and rows without filters beside rows under top-p, every kind of law, fp32 and bf16."""
    mixed = [*params_of(0.9, 0.4), SamplingParams(temperature=0.0), SamplingParams(temperature=0.7)]
    for kind, dtype in (("logits", torch.bfloat16), ("point", None), ("probs", None), ("sparse", None)):
        agrees(kernels, Case(kind, mixed, [3, 2, 3, 2, 0, 4], seed=71, dtype=dtype), operations=("rejection",))


def check_flat_rows(kernels):
    """All logits are equal, so no edge tells which tokens are kept: ids do, and half of the winners are not."""
    agrees(kernels, Case("point", params_of(0.5, 0.7), [0] * 24, seed=72, spread=0.0), operations=("rejection",))


def check_short_rows(kernels):
    """All logits are equal, and few: winners that are not kept are replaced by what a list of all of them tells."""
    case = Case("point", params_of(0.5, 0.7), [0] * 40, seed=86, spread=0.0, vocab_size=200)
    agrees(kernels, case, operations=("rejection",))


def check_likely_drafts(kernels):
    """Drafts of tokens near top-p's end in rows of few likely ones: what is kept depends on which one is the last."""
    law, drafted = torch.tensor([[0.4, 0.3, 0.2, 0.08, 0.02], [0.1, 0.42, 0.42, 0.04, 0.02]]).log()
    for top_p in (0.6, 0.8):
        case = Case("logits", params_of(top_p), [1] * 90, seed=87, spread=0.0, vocab_size=5)
        case.logits[:] = law
        case.draft_logits = [drafted[None]] * 90
        case.temperatures = [1.0] * 90
        case.drafts = [case.drawn(index) for index in range(90)]
        agrees(kernels, case, operations=("rejection",))


def check_one_likely_token(kernels):
    """All logits but one are equal: of winners that are not kept some are replaced by the one, some by kept equals."""
    case = Case("point", params_of(0.65), [0] * 120, seed=81, spread=0.0, vocab_size=1100)
    case.logits[:, 700] = math.log(0.3 / 0.7 * 1099)
    agrees(kernels, case, operations=("rejection",))


def check_peaked_rows(kernels):
    """Four likely tokens, of which top-p keeps two or all: its limits are what tiles tell."""
    case = Case("point", params_of(0.6, 0.6, 0.9), [0] * 60, seed=82, spread=0.0)
    case.logits[:] = math.log(0.08 / 596)
    case.logits[:, [10, 300, 11, 550]] = torch.tensor([0.45, 0.25, 0.12, 0.1]).log()
    agrees(kernels, case, operations=("rejection",))


def check_likely_tile(kernels):
    """Two likely tokens of one tile, which alone are kept: the largest ones of other tiles are likely, and dropped."""
    case = Case("point", params_of(0.6), [0] * 60, seed=84, spread=0.0)
    case.logits[:] = math.log(0.08 / 596)
    case.logits[:, [10, 11, 300, 550]] = torch.tensor([0.45, 0.25, 0.12, 0.1]).log()
    agrees(kernels, case, operations=("rejection",))


def check_hidden_contenders(kernels):
    """Rows of much the same logits: a program's two best tokens are dropped both, and the winner is one behind them."""
    case = Case("point", params_of(0.3, 0.5), [0] * 12, seed=85, spread=0.5)
    agrees(kernels, case, operations=("rejection",))


def check_doubtful_winners(kernels):
    """Few logits, in which top-p ends among many equal tokens: winners there are kept, or dropped for others."""
    for seed, spread in ((73, 0.5), (74, 0.7)):
        case = Case("point", params_of(0.5, 0.6, 0.7, 0.8), [0] * 24, seed=seed, spread=spread, step=0.5)
        agrees(kernels, case, operations=("rejection",))


def check_few_tokens(kernels):
    """Likely tokens at the end, whose weight the kept mass isn't known to: residuals that change with it."""
    case = Case("logits", params_of(0.4, 0.4, 0.8), [1] * 60, seed=75, spread=0.0, vocab_size=5)
    case.logits[:] = torch.tensor([0.35, 0.3, 0.2, 0.1, 0.05]).log()
    case.draft_logits = [torch.tensor([[0.5, 0.02, 0.4, 0.04, 0.04]]).log()] * 60
    case.temperatures = [1.0] * 60
    case.drafts = [case.drawn(index) for index in range(60)]
    agrees(kernels, case, operations=("rejection",))


def check_wide_rows(kernels):
    """Rows of smooth logits over many tiles and programs, of which top-p keeps few tokens or many."""
    for kind in ("logits", "point"):
        case = Case(kind, params_of(0.5, 0.8, 0.95), [2] * 6, seed=76, spread=1.2, nearness=0.4, vocab_size=1500)
        agrees(kernels, case, operations=("rejection",))
    case = Case("point", params_of(0.3, 0.6), [0] * 60, seed=83, spread=1.0)
    agrees(kernels, case, operations=("rejection",))


def check_settled_masks(kernels):
    """A mask under top-p alone: tokens that are not allowed are in no sample, no sum and no race."""
    allowed = list(range(5, 600, 3))
    params = SamplingParams(temperature=1.0, top_p=0.8, allowed_token_ids=allowed)
    case = Case("logits", [params], [2] * 6, seed=77, spread=1.5, nearness=0.4)
    words = torch.zeros(19 * 32, dtype=torch.int64)
    words[allowed] = 1
    words = (words.view(19, 32) << torch.arange(32)).sum(1)
    bits = torch.where(words >= 1 << 31, words - (1 << 32), words).int().expand(18, 19).contiguous()
    laws = [CHAIN.laws(case.rows_of(i), CHAIN.resolve(params, None, 600), [History([1])] * 3) for i in range(6)]
    verifier = get_verifier("rejection")
    expected = [list(verifier.verify(case.drafts[i], laws[i], KeyedNoise(case.seed(i))).token_ids) for i in range(6)]
    seeds = [case.seed(index) for index in range(6)]
    requests = kernels.Requests.of([params] * 6, seeds, device=DEVICE, masked=True)
    found = kernels.verify_rejection(
        case.logits.to(DEVICE), case.draft(kernels), case.rows(kernels), requests, allowed=bits.to(DEVICE)
    )
    assert emitted(found) == expected


def check_settled_faults(kernels):
    """Bad rows where a walk stops, and behind the token that stops it, which raise nothing."""
    check_faults(kernels, params_of(0.8), seed=78)


def check_greedy_ties(kernels):
    """Greedy rows of several largest logits beside rows under top-p: the lowest id of these alone is accepted."""
    case = Case("point", [SamplingParams(temperature=0.0), *params_of(0.8)], [2] * 6, seed=80, spread=1.0, step=1.0)
    for index in range(6):
        rows = case.rows_of(index)
        drafted = [
            int((row == row.max()).nonzero()[which]) for which, row in zip((0, index // 2 % 2), rows[:2], strict=True)
        ]
        case.drafts[index] = Draft.of_token_ids(case.start(index), drafted)
    agrees(kernels, case, operations=("rejection",))


def check_misled_edges(kernels):
    """Edges that a sample puts anywhere: they cost time, never another token."""
    if DEVICE == "cuda":
        return  # edges are moved on the interpreter alone
    case = Case("logits", params_of(0.6, 0.9), [2] * 6, seed=79, spread=1.0, nearness=0.5)
    rows, draft, requests, logits = case.rows(kernels), case.draft(kernels), case.requests(kernels), case.logits
    kernel = kernels.RatioKernel(logits.to(DEVICE), draft, rows, case.vocab_size, block=False, tile=256)
    expected = case.expected("rejection")
    for shift in (-3.0, -0.3, 0.3, 3.0):
        with misled(kernels, shift):
            assert emitted(kernel(logits.to(DEVICE), draft, rows, requests)) == expected


@contextmanager
def misled(kernels, shift):
    """Edges further up by `shift` in logits than a sample puts them."""
    module = importlib.import_module(f"{kernels.__name__}.ratio.device.bracketed")
    told = module.sampled_edges
    module.sampled_edges = lambda *given: told(*given) + shift
    try:
        yield
    finally:
        module.sampled_edges = told


CHECKS = [
    check_settled_batch,
    check_flat_rows,
    check_short_rows,
    check_likely_drafts,
    check_one_likely_token,
    check_peaked_rows,
    check_likely_tile,
    check_hidden_contenders,
    check_doubtful_winners,
    check_few_tokens,
    check_wide_rows,
    check_settled_masks,
    check_settled_faults,
    check_greedy_ties,
    check_misled_edges,
]
