"""What `auto` comes to where its lengths are kept for stretches of steps, in simulated time."""

import random

import pytest

from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import Load
from draftproof.engine.ahead.lengths import KEPT_FOR, MOST_KEPT, TIMED_FOR
from draftproof.errors import ParameterError

PLAIN_SECONDS = 0.002


def simulate(policy, *, acceptance, seconds_of, num_passes, seed):
    """(emitted tokens, seconds, drafted lengths), as `AheadLoop` asks and tells: the first step of a stretch isn't
    timed."""
    generator = random.Random(seed)
    policy.run_ahead()
    emitted, seconds, lengths = 0, 0.0, []
    while len(lengths) < num_passes:
        length = policy.num_tokens(None)
        count = TIMED_FOR if policy.measures_plain else KEPT_FOR if length == 0 or policy.is_settled else 1
        num_kept = 0
        while True:
            for _ in range(count):
                accepted = 0
                while accepted < length and generator.random() < acceptance:
                    accepted += 1
                took = seconds_of(1 + length)
                if num_kept:
                    policy.observe_cost(1 + length, took, Load(), ahead=True)
                policy.observe(length, accepted, None)
                if length == 0:
                    policy.wait(None)
                num_kept += 1
                emitted += accepted + 1
                seconds += took
                lengths.append(length)
            if count != KEPT_FOR or num_kept >= MOST_KEPT or policy.would_draft(None) != length:
                break
    return emitted, seconds, lengths


def linear(slope, first=0.0):
    """first: what drafting at all adds, in plain steps."""
    return lambda width: PLAIN_SECONDS * (1.0 + first * (width > 1) + slope * (width - 1))


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("slope", "first"), [(0.02, 0.2), (0.15, 0.0), (0.15, 0.4)])
def test_it_comes_close_to_the_best_fixed_length(acceptance, slope, first):
    """90 % of it over passes 300 to 3,300; see tests/drafters/test_length.py for the error budget."""
    policy, seconds_of = AutoLength(7), linear(slope, first)
    simulate(policy, acceptance=acceptance, seconds_of=seconds_of, num_passes=300, seed=1)
    emitted, seconds, _ = simulate(policy, acceptance=acceptance, seconds_of=seconds_of, num_passes=3000, seed=2)
    best = max(sum(acceptance**place for place in range(n + 1)) / seconds_of(1 + n) for n in range(8))
    assert emitted / seconds >= 0.9 * best


@pytest.mark.parametrize("slope", [0.05, 0.3])
def test_text_that_cannot_be_guessed_costs_a_few_per_cent(slope):
    policy, seconds_of = AutoLength(7), linear(slope, 0.3)
    emitted, seconds, _ = simulate(policy, acceptance=0.02, seconds_of=seconds_of, num_passes=3000, seed=3)
    assert emitted * PLAIN_SECONDS / seconds >= 0.95


def test_drafts_that_are_slow_where_they_are_waited_for_are_drafted_ahead():
    """Ten plain steps for a draft when waited for, a fifth of one in a captured step."""
    policy = AutoLength(7)
    for _ in range(50):
        length = policy.num_tokens(None)
        policy.observe_cost(1 + length, PLAIN_SECONDS)
        policy.observe_draft_cost(length, 10 * PLAIN_SECONDS)
        policy.observe(length, length, None)
    assert length == 0
    next_one = policy.for_request()
    emitted, seconds, lengths = simulate(next_one, acceptance=0.8, seconds_of=linear(0.02, 0.2), num_passes=300, seed=4)
    assert lengths[-1] > 3
    # A request that is waited for goes by what waiting costs, still.
    other = policy.for_request()
    assert all(other.num_tokens(None) == 0 for _ in range(3))


def test_what_waited_steps_cost_says_nothing_of_those_ahead():
    policy = AutoLength(4)
    policy.run_ahead()
    for _ in range(3):
        policy.observe_cost(1, 1.0)
    assert policy.num_tokens(None) == 0
    assert policy.measures_plain
    for _ in range(3):
        policy.observe_cost(1, 1.0, ahead=True)
    policy.num_tokens(None)
    assert not policy.measures_plain


def test_without_the_clock_nothing_runs_ahead():
    with pytest.raises(ParameterError, match="use_clock"):
        AutoLength(4, use_clock=False).run_ahead()
