"""Length policies, in simulated time: what AutoLength converges to, what it may lose, what it depends on."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.drafters import acceptance
from draftproof.drafters.acceptance import AcceptanceRates
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import PLAIN_EVERY, LearnedCosts, Load
from draftproof.drafters.fixed_costs import FixedCosts
from draftproof.drafters.guards import FIRST_BUDGET, LAST_INTERVAL, LOSS_SHARE, MOST_BUDGET, MOST_DEBT, LossBudget
from draftproof.drafters.length import FixedLength
from draftproof.errors import ParameterError

PLAIN_SECONDS = 0.02


def linear(slope):
    """A machine on which one more token costs `slope` of a plain step."""
    return lambda width: PLAIN_SECONDS * (1.0 + slope * (width - 1))


def simulate(policy, *, acceptance, seconds_of, num_passes, seed, confidence=1.0, noise=0.0, draft_seconds=0.0):
    """(emitted tokens, seconds, drafted lengths) of passes whose tokens are accepted one by one, independently.

    acceptance: the probability, or a function of the pass's number. noise: relative jitter of measured times.
    """
    generator = random.Random(seed)
    emitted, seconds, lengths = 0, 0.0, []
    for index in range(num_passes):
        rate = acceptance(index) if callable(acceptance) else acceptance
        length = policy.num_tokens(confidence)
        accepted = 0
        while accepted < length and generator.random() < rate:
            accepted += 1
        took = seconds_of(1 + length) * (1.0 + noise * (2.0 * generator.random() - 1.0))
        policy.observe_cost(1 + length, took)
        policy.observe_draft_cost(length, draft_seconds * length)
        policy.observe(length, accepted, confidence)
        emitted += accepted + 1
        seconds += took + draft_seconds * length
        lengths.append(length)
    return emitted, seconds, lengths


def expected_speed(acceptance, seconds_of, length, draft_seconds=0.0):
    """Tokens per second of drafts of one length, in the long run."""
    emitted = sum(acceptance**count for count in range(length + 1))
    return emitted / (seconds_of(1 + length) + draft_seconds * length)


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("slope", [0.02, 0.15, 0.5])
def test_auto_comes_close_to_the_best_fixed_length(acceptance, slope):
    """At least 90 % of the best fixed length's expected speed, over passes 200 to 2,200.

    Error budget: emitted tokens per pass have a standard deviation below 4; over 2,000 passes the mean is
    within 4 * 4 / sqrt(2000) = 0.36 of its expectation with probability 0.99994, that is 3 to 6 % of it in
    the long-draft cells where the deviation is that large, and below 4 % elsewhere. The rest is regret.
    """
    policy = AutoLength(8)
    seconds_of = linear(slope)
    simulate(policy, acceptance=acceptance, seconds_of=seconds_of, num_passes=200, seed=1, noise=0.05)
    emitted, seconds, _ = simulate(
        policy, acceptance=acceptance, seconds_of=seconds_of, num_passes=2_000, seed=2, noise=0.05
    )
    best = max(expected_speed(acceptance, seconds_of, length) for length in range(9))
    assert emitted / seconds >= 0.90 * best


def test_a_slow_drafter_is_turned_off():
    """A drafter that takes two plain steps per token never pays; one that takes a hundredth does."""
    settings = dict(acceptance=0.9, seconds_of=linear(0.02), num_passes=1_000, seed=3)
    _, _, slow = simulate(AutoLength(4), draft_seconds=2 * PLAIN_SECONDS, **settings)
    _, _, fast = simulate(AutoLength(4), draft_seconds=0.01 * PLAIN_SECONDS, **settings)
    assert sum(length > 0 for length in slow) < 50
    assert sum(length > 0 for length in fast) > 950


@pytest.mark.parametrize("slope", [0.02, 0.15, 1.0])
@pytest.mark.parametrize("acceptance", [0.0, 0.02])
def test_text_that_cannot_be_guessed_costs_a_few_per_cent(slope, acceptance):
    """Never slower than plain by more than LOSS_SHARE of the tokens and the first budget, by exact costs.

    No error budget: with noiseless times the bound holds for every outcome. The costs that were guessed before
    each width's first pass make up the slack of one plain step per width.
    """
    policy = AutoLength(8)
    emitted, seconds, lengths = simulate(
        policy, acceptance=acceptance, seconds_of=linear(slope), num_passes=1_000, seed=4
    )
    plain_seconds = emitted * PLAIN_SECONDS
    num_widths = len(set(lengths))
    slack = (FIRST_BUDGET + LOSS_SHARE * emitted + num_widths) * PLAIN_SECONDS
    assert seconds <= plain_seconds + slack
    assert seconds / plain_seconds < 1.05
    assert sum(length > 0 for length in lengths[-500:]) <= 40


def test_it_finds_out_when_the_text_becomes_easy():
    policy = AutoLength(8)
    _, _, lengths = simulate(
        policy,
        acceptance=lambda index: 0.0 if index < 600 else 1.0,
        seconds_of=linear(0.05),
        num_passes=1_200,
        seed=5,
    )
    first = next(index for index in range(600, 1_200) if lengths[index : index + 20] == [8] * 20)
    assert first <= 600 + LAST_INTERVAL + 40


def test_after_one_good_probe_it_goes_on():
    """Nothing is random here: tokens are all rejected, then all accepted."""
    _, _, lengths = simulate(
        AutoLength(8),
        acceptance=lambda index: 0.0 if index < 600 else 1.0,
        seconds_of=linear(0.15),
        num_passes=800,
        seed=5,
    )
    first = next(index for index in range(600, 800) if lengths[index] > 0)
    assert 0 not in lengths[first : first + 40] and lengths[first + 10 : first + 40] == [8] * 30


def test_when_the_text_becomes_hard_the_budget_holds_and_drafting_ends():
    """Whatever was gained before: from there on the loss is MOST_BUDGET + LOSS_SHARE of the tokens, at most.

    No error budget: after 300 passes the costs of the widths in use are known, and nothing is accepted.
    """
    policy = AutoLength(8)
    settings = dict(seconds_of=linear(0.15), seed=6)
    _, _, easy = simulate(policy, acceptance=1.0, num_passes=300, **settings)
    assert easy[200:].count(8) == 99
    emitted, seconds, hard = simulate(policy, acceptance=0.0, num_passes=300, **settings)
    assert emitted == 300
    assert seconds / PLAIN_SECONDS - emitted <= MOST_BUDGET + LOSS_SHARE * emitted + 1e-6
    assert sum(length > 0 for length in hard[200:]) <= 5


def test_drafts_that_fail_in_a_row_do_not_end_what_pays_on_average():
    """Four tokens out of a pass of one and a half plain steps, then eight such passes of one token."""
    budget = LossBudget()
    assert budget.steps == FIRST_BUDGET and budget.affords(1.0 + FIRST_BUDGET) and not budget.affords(3.5)
    for _ in range(20):
        budget.settle(4, 1.5)
    assert budget.steps == MOST_BUDGET
    for _ in range(8):
        assert budget.affords(1.5)
        budget.settle(1, 1.5)


@pytest.mark.parametrize("num_before", [0, 40])
@pytest.mark.parametrize("num_slow", [2, 10])
def test_drafts_that_a_busy_machine_stretched_do_not_end_what_pays(num_before, num_slow):
    """Drafts of 20 plain steps a token, at the very beginning or later: within 150 passes drafting goes on."""
    policy = AutoLength(8)
    settings = dict(acceptance=0.8, seconds_of=linear(0.02), seed=4)
    simulate(policy, num_passes=num_before, draft_seconds=0.05 * PLAIN_SECONDS, **settings)
    simulate(policy, num_passes=num_slow, draft_seconds=20 * PLAIN_SECONDS, **settings)
    _, _, lengths = simulate(policy, num_passes=250, draft_seconds=0.05 * PLAIN_SECONDS, **settings)
    assert sum(length > 0 for length in lengths[150:]) > 90


def test_plain_steps_save_up_for_a_draft_that_is_taken_to_be_slow_and_gains_do_not():
    budget = LossBudget()
    budget.settle(1, 50.0)
    assert budget.steps == -MOST_DEBT
    for _ in range(1000):
        budget.settle(1, 1.0)
    assert budget.steps == pytest.approx(1000 * LOSS_SHARE - MOST_DEBT) and budget.affords(28.0)
    budget.settle(5, 1.2)
    assert budget.steps == pytest.approx(1000 * LOSS_SHARE - MOST_DEBT)
    budget.settle(1, 28.0)
    for _ in range(100):
        budget.settle(5, 1.2)
    assert budget.steps == MOST_BUDGET


def test_confidences_are_told_apart():
    """Two kinds of proposals alternate: one is always right, one always wrong."""
    policy = AutoLength(4)
    for _ in range(200):
        for confidence in (2.0, 5.0):
            length = policy.num_tokens(confidence)
            policy.observe_cost(1 + length, linear(0.3)(1 + length))
            policy.observe(length, length if confidence == 5.0 else 0, confidence)
    assert policy.num_tokens(5.0) == 4
    assert policy.num_tokens(2.0) == 0


def test_the_next_request_starts_with_what_the_engine_learned():
    first = AutoLength(8)
    simulate(first, acceptance=1.0, seconds_of=linear(0.05), num_passes=100, seed=7)
    assert 8 in [first.for_request().num_tokens(1.0) for _ in range(2)]
    simulate(first, acceptance=0.0, seconds_of=linear(0.5), num_passes=400, seed=8)
    later = first.for_request()
    assert [later.num_tokens(1.0) for _ in range(3)] == [0, 0, 0]


def test_a_plain_pass_is_measured_first_and_now_and_then():
    policy = AutoLength(4)
    _, _, lengths = simulate(policy, acceptance=1.0, seconds_of=linear(0.02), num_passes=1_000, seed=10)
    assert lengths[:3] == [0, 0, 0] and lengths[3] > 0
    assert lengths.count(0) == 3 + (1_000 - 3) // (PLAIN_EVERY + 1)


def test_the_first_measurements_count_by_their_median():
    """A slow first pass, as lazy initialisation makes it, is forgotten at once; a lucky one is not believed."""
    costs = LearnedCosts()
    for seconds, told in ((0.500, 0.500), (0.012, 0.012), (0.004, 0.012)):
        costs.observe_pass(1, seconds)
        assert costs.of_pass(1) == pytest.approx(told)


def test_what_scatters_is_averaged_and_what_was_seen_once_is_doubted():
    """Times that scatter by a third, as beside other processes; a width of 5 costs 1.1 passes over one token."""
    source, costs, errors = random.Random(4), LearnedCosts(), []
    for index in range(2_000):
        for width, steps in ((1, 1.0), (3, 1.05), (5, 1.1)):
            costs.observe_pass(width, 0.01 * steps * math.exp(source.gauss(0, 0.3)))
        if index >= 300:
            errors.append(abs(math.log(costs.of_pass(5) / costs.of_pass(1) / 1.1)))
    # A mean over 50 measurements of each, with forgetting: standard deviation .04, mean error .03.
    assert sum(errors) / len(errors) < 0.05
    # One measurement is worth no more than it says: it may have been twice what it should.
    costs.observe_pass(9, 0.02)
    assert costs.of_pass(9) < 1.2 * costs.of_pass(5)
    for _ in range(200):
        costs.observe_pass(9, 0.02 * math.exp(source.gauss(0, 0.3)))
        costs.observe_pass(1, 0.01 * math.exp(source.gauss(0, 0.3)))
    assert costs.of_pass(9) == pytest.approx(2 * costs.of_pass(1), rel=0.25)


def test_a_quiet_clock_is_believed_at_once():
    costs = LearnedCosts()
    for _ in range(10):
        costs.observe_pass(1, 0.01)
    costs.observe_pass(5, 0.02)
    assert costs.of_pass(5) == pytest.approx(0.02)


def test_without_the_clock_lengths_depend_on_the_request_alone():
    """Times and other requests change nothing; a cost table does."""
    verdicts = [random.Random(9).random() for _ in range(300)]

    def lengths_of(policy, seconds):
        chosen = []
        for share in verdicts:
            length = policy.num_tokens(2.0)
            chosen.append(length)
            policy.observe_cost(1 + length, seconds * (1 + length))
            policy.observe(length, int(share * (length + 1)), 2.0)
        return chosen

    settings = AutoLength(6, use_clock=False)
    alone = lengths_of(settings.for_request(), 1.0)
    assert lengths_of(settings.for_request(), 1e6) == alone
    dear = AutoLength(6, use_clock=False, cost_table=[1, 2, 3, 4, 5, 6, 7])
    assert lengths_of(dear, 1.0) != alone


def test_without_the_clock_one_request_cannot_spend_the_budget_of_another():
    settings = AutoLength(4, use_clock=False, cost_table=[1, 2, 3, 4, 5])
    first, second = settings.for_request(), settings.for_request()
    fresh = [second.num_tokens(1.0)]
    assert fresh != [0]
    for _ in range(10):
        first.observe(4, 0, 1.0)
    assert settings.for_request().num_tokens(1.0) == fresh[0]
    assert second.num_tokens(1.0) == fresh[0]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 10.0)), max_size=60), st.integers(1, 12))
def test_the_length_is_always_allowed(passes, max_tokens):
    policy = AutoLength(max_tokens)
    for share, seconds in passes:
        length = policy.num_tokens(None)
        assert 0 <= length <= max_tokens
        policy.observe_cost(1 + length, seconds)
        policy.observe(length, int(share * length), None)


def test_acceptance_falls_back_from_request_to_engine():
    engine = AcceptanceRates()
    first, second = AcceptanceRates(engine), AcceptanceRates(engine)
    assert second.rate(3.0, 0) == pytest.approx(0.5)
    for _ in range(100):
        first.observe(2, 1, 3.0)
    assert second.rate(3.0, 0) > 0.9 and second.rate(3.0, 1) < 0.1
    assert second.expected_accepted(3.0, 2)[2] == pytest.approx(
        second.rate(3.0, 0) + second.rate(3.0, 0) * second.rate(3.0, 1)
    )


def test_learned_costs_follow_load_and_keep_the_shape():
    costs = LearnedCosts()
    for _ in range(20):
        costs.observe_pass(1, 0.010)
        costs.observe_pass(9, 0.019)
    assert costs.of_pass(1) == pytest.approx(0.010) and costs.of_pass(9) == pytest.approx(0.019)
    assert costs.of_pass(5) == pytest.approx(0.0145)
    for _ in range(60):
        costs.observe_pass(1, 0.020)
    # The first of them comes after another width's pass and may be the plain pass's own: 1 %. As much is doubt.
    assert costs.of_pass(9) / costs.of_pass(1) == pytest.approx(1.9, rel=0.025)
    assert costs.of_pass(1) == pytest.approx(0.020, rel=0.01)


def test_the_first_plain_step_corrects_a_guessed_shape():
    costs = LearnedCosts()
    costs.observe_pass(9, 0.012)
    costs.observe_pass(1, 0.010)
    assert costs.of_pass(1) == pytest.approx(0.010)
    assert costs.of_pass(9) == pytest.approx(0.012)


@pytest.mark.parametrize("num_other_tokens", [0, 3, 200])
def test_all_widths_at_once_cost_what_they_cost_one_by_one(num_other_tokens: int) -> None:
    """Known widths, between them, beyond the widest; with measurements that scatter."""
    costs = LearnedCosts()
    assert costs.of_passes(4).tolist() == pytest.approx([costs.of_pass(width) for width in range(1, 5)])
    load = Load(2, num_other_tokens)
    for turn in range(30):
        for width in (1, 3, 4, 9, 17):
            costs.observe_pass(width, 0.01 * (1 + 0.04 * width + 0.002 * ((7 * turn + width) % 5)), load)
    assert costs.of_passes(40).tolist() == pytest.approx([costs.of_pass(width) for width in range(1, 41)], rel=1e-12)
    fixed = FixedCosts((1.0, 1.5, 3.0), 0.1)
    assert fixed.of_passes(2).tolist() == [1.0, 1.5]


def test_fixed_costs_ignore_the_clock():
    costs = FixedCosts([1.0, 1.5], draft_token=0.1)
    costs.observe_pass(2, 99.0)
    costs.observe_draft(1, 99.0)
    assert (costs.of_pass(1), costs.of_pass(2), costs.of_draft(3)) == (1.0, 1.5, pytest.approx(0.3))


def test_fixed_length_is_fixed():
    policy = FixedLength(3).for_request()
    policy.observe(3, 0, None)
    policy.observe_cost(4, 1.0)
    assert (policy.num_tokens(None), policy.num_tokens(7.0), policy.max_tokens) == (3, 3, 3)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FixedLength(-1), "num_speculative_tokens"),
        (lambda: AutoLength(0), "num_speculative_tokens"),
        (lambda: AutoLength(2, cost_table=[1, 1, 1]), "use_clock"),
        (lambda: AutoLength(2, draft_token_cost=0.5), "use_clock"),
        (lambda: AutoLength(2, use_clock=False, cost_table=[1, 1]), "cost_table"),
        (lambda: AutoLength(2, use_clock=False, cost_table=[1, 0, 1]), "cost_table"),
        (lambda: AutoLength(2, use_clock=False, draft_token_cost=-1.0), "draft_token_cost"),
        (lambda: AutoLength(2).observe(3, 0, None), "num_drafted"),
        (lambda: AutoLength(2).observe(1, 2, None), "num_accepted"),
        (lambda: AutoLength(2).observe_cost(0, 1.0), "width"),
        (lambda: AutoLength(2).observe_cost(1, 0.0), "seconds"),
        (lambda: AutoLength(2).observe_cost(1, math.nan), "seconds"),
        (lambda: AutoLength(2).observe_draft_cost(1, -1.0), "seconds"),
    ],
)
def test_bad_settings_are_refused_by_name(make, field):
    with pytest.raises(ParameterError, match=field):
        make()


def first_answers(num_passes=16):
    """What is asked for where no draft is ever accepted."""
    policy, answers = AutoLength(4, use_clock=False, draft_token_cost=0.15), []
    for _ in range(num_passes):
        answers.append(policy.num_tokens(None))
        policy.observe(answers[-1], 0, None)
    return answers


def test_a_few_rejected_drafts_are_no_proof():
    """Six drafts in a row before anything is waited for, and then waits from the first interval on."""
    answers = first_answers()
    assert all(answers[:6]) and not any(answers[6:9])
    assert answers[9] and not any(answers[10:])


def test_belief_in_the_first_draft_is_caught(monkeypatch):
    monkeypatch.setattr(acceptance, "NUM_FIRST", 1)
    with pytest.raises(AssertionError):
        test_a_few_rejected_drafts_are_no_proof()
