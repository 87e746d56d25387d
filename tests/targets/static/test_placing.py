"""Which attention places what it reads: only where no other row reads it in the same forward."""

import pytest

from draftproof.targets.base import ScoreRequest
from draftproof.targets.static.tables import plan_of
from tests.targets.models import tiny_model
from tests.targets.static.forwards import CASES, IDS, LENGTHS, filled


def may_place(requests, *, invariant=False):
    steps = filled(tiny_model("llama"), static=True, invariant=invariant)._runner.static
    starts = [LENGTHS[request.slot] for request in requests]
    plan = plan_of(requests, starts, [0] * len(requests), steps.most_tokens, paths=invariant)
    (found,) = {attention._may_place for attention in steps._make(steps._bucket(plan, None)).attentions}
    return found


def chains(*counts):
    return [ScoreRequest(slot, tuple(IDS[:count])) for slot, count in enumerate(counts)]


@pytest.mark.parametrize("counts", [(1,), (5, 1, 7), (16, 16)])
def test_requests_of_one_row_each_are_placed_by_attention(counts):
    assert may_place(chains(*counts))
    assert not may_place(chains(*counts), invariant=True)


@pytest.mark.parametrize("requests", [chains(1, 5, 33), chains(64), CASES["chains"], CASES["trees"]])
def test_requests_of_several_rows_are_not(requests):
    """Of 32 tokens at the most, with two query heads for each key head."""
    assert not may_place(requests)
