"""What `verify_rejection` must do under top-k and min-p, where each row is raced in its list, on the interpreter."""

import importlib
from contextlib import contextmanager

import torch

from draftproof.params import SamplingParams
from tests.kernels.ratio_cases import DEVICE, Case, agrees, check_faults, emitted
from tests.kernels.ratio_checks import check_penalties_and_masks

FILTERED = [
    SamplingParams(temperature=1.0, top_k=7, top_p=0.8),
    SamplingParams(temperature=1.2, min_p=0.05),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=3.0, top_k=150),
]


@contextmanager
def many_rows(kernels):
    """All batches count as ones of many rows."""
    module = importlib.import_module(f"{kernels.__name__}.ratio.launches")
    few, module._FEW_ROWS = module._FEW_ROWS, 0
    try:
        yield
    finally:
        module._FEW_ROWS = few


def check_listed_rows(kernels):
    """Rows with top-k or min-p beside greedy ones, every kind of law, drafts of several lengths and none."""
    with many_rows(kernels):
        for kind, dtype in (("logits", torch.bfloat16), ("point", None), ("probs", None), ("sparse", None)):
            case = Case(kind, FILTERED, [3, 2, 3, 2, 0, 4, 1, 0, 3, 3], seed=91, dtype=dtype)
            agrees(kernels, case, operations=("rejection",))


def check_listed_bonuses(kernels):
    """Drafts that are accepted whole, so that bonus rows end most walks, and rows without a draft."""
    with many_rows(kernels):
        agrees(kernels, Case("logits", FILTERED[:2], [2, 0] * 8, seed=92, nearness=0.05), operations=("rejection",))


def check_long_lists(kernels):
    """Rows that keep more tokens than a list holds are raced by the last launch."""
    wide = [SamplingParams(temperature=1.0, top_k=400), SamplingParams(temperature=1.0, min_p=0.001)]
    with many_rows(kernels):
        agrees(kernels, Case("logits", wide, [2, 1] * 4, seed=93, spread=0.3), operations=("rejection",))


def check_listed_faults(kernels):
    """Bad rows where a walk stops, and behind the token that stops it, which raise nothing."""
    with many_rows(kernels):
        check_faults(kernels, FILTERED[:1], seed=94)


def check_listed_masks(kernels):
    """A mask under top-k: tokens that are not allowed are in no list, as if their logits were -inf."""
    allowed = list(range(5, 600, 3))
    params = SamplingParams(temperature=1.0, top_k=9)
    case = Case("logits", [params], [2] * 6, seed=95, spread=1.5, nearness=0.4)
    words = torch.zeros(19 * 32, dtype=torch.int64)
    words[allowed] = 1
    words = (words.view(19, 32) << torch.arange(32)).sum(1)
    bits = torch.where(words >= 1 << 31, words - (1 << 32), words).int().expand(18, 19).contiguous()
    requests = kernels.Requests.of([params] * 6, [case.seed(i) for i in range(6)], device=DEVICE, masked=True)
    without = case.logits.masked_fill(~torch.isin(torch.arange(600), torch.tensor(allowed)), -torch.inf)
    with many_rows(kernels):
        drafts = case.draft(kernels), case.rows(kernels), requests
        found = kernels.verify_rejection(case.logits.to(DEVICE), *drafts, allowed=bits.to(DEVICE))
        tokens = emitted(found)
        assert tokens == emitted(kernels.verify_rejection(without.to(DEVICE), *drafts))
    assert all(token in allowed for row in tokens for token in row)


def check_listed_changes(kernels):
    """Penalised and biased tokens, which lists hold as they are after all changes."""
    with many_rows(kernels):
        check_penalties_and_masks(kernels)


CHECKS = [
    check_listed_rows,
    check_listed_bonuses,
    check_long_lists,
    check_listed_faults,
    check_listed_masks,
    check_listed_changes,
]
