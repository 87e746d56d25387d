"""What drafting costs: by the draft, by the token, or both; outliers; lengths that never change."""

import numpy as np
import pytest

from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import LearnedCosts
from draftproof.drafters.draft_cost import DraftCost

LENGTHS = (1, 4, 2, 7, 1, 3)


def learned(fixed, per_token, lengths, noise=0.0):
    cost, source = DraftCost(), np.random.default_rng(4)
    for length in lengths:
        cost.observe(length, (fixed + per_token * length) * (1.0 + noise * source.standard_normal()))
    return cost


@pytest.mark.parametrize(("fixed", "per_token"), [(0.01, 0.0), (0.0, 0.004), (0.005, 0.002)])
def test_both_parts_are_found(fixed, per_token):
    cost = learned(fixed, per_token, LENGTHS * 6, noise=0.05)
    for length in (1, 7):
        assert cost.of(length) == pytest.approx(fixed + per_token * length, rel=0.15)
    assert cost.of(0) == 0.0


def test_lengths_that_never_change_leave_what_was_known():
    """A block drafter's draft of 7 costs what one of 1 does, after 300 drafts of 1 as well."""
    cost = learned(0.01, 0.0, (*LENGTHS * 3, *[1] * 300))
    assert cost.of(1) == pytest.approx(0.01, rel=0.05) and cost.of(7) < 0.0125


def test_an_outlier_counts_little_and_a_change_is_followed():
    cost = learned(0.01, 0.0, LENGTHS * 3)
    cost.observe(2, 5.0)
    assert cost.of(2) < 0.02
    for length in LENGTHS * 5:
        cost.observe(length, 0.03)
    assert cost.of(7) == pytest.approx(0.03, rel=0.2)


def test_no_part_is_negative():
    cost = DraftCost()
    for length, seconds in [(1, 0.01), (7, 0.001)] * 20:
        cost.observe(length, seconds)
        assert cost.of(1) >= 0.0 and cost.of(100) >= cost.of(1)
    free = learned(0.0, 0.0, LENGTHS)
    assert free.of(7) < 1e-9


def test_lookups_have_costs_of_their_own():
    costs = LearnedCosts()
    for length in LENGTHS:
        costs.observe_draft(length, 0.01)
        costs.observe_draft(length, 1e-5, is_lookup=True)
    assert costs.of_draft(5) == pytest.approx(0.01, rel=0.1) and costs.of_draft(5, is_lookup=True) < 1e-4


@pytest.mark.parametrize(("per_draft", "longest"), [(0.006, True), (0.0, False)])
def test_auto_drafts_long_where_a_draft_has_one_price(per_draft, longest):
    """Passes of 1 to 8 tokens cost the same, drafting .006 in all or .006 a token; 70 % of the tokens are accepted."""
    policy = AutoLength(7)
    source = np.random.default_rng(1)
    asked = []
    for _ in range(400):
        length = policy.num_tokens(None)
        if length:
            policy.observe_draft_cost(length, per_draft if longest else 0.006 * length, None)
        policy.observe_cost(1 + length, 0.03)
        accepted = next((place for place in range(length) if source.random() > 0.7), length)
        policy.observe(length, accepted, None)
        asked.append(length)
    mean = np.mean(asked[200:])
    assert mean > 5 if longest else 1 < mean < 5
