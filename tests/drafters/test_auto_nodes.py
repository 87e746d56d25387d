"""The node budget `auto`, in simulated time: what it may lose, what it comes to, and what it may look at."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.config import SpeculativeConfig
from draftproof.core import ROOT, PointMass
from draftproof.drafters import anticipating
from draftproof.drafters.anticipating import CuttingNodes
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.auto_nodes import AutoNodes, Shared
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.costs import NUM_FIRST, LearnedCosts, Load
from draftproof.drafters.curve import FIRST_SLOPE
from draftproof.drafters.fixed_costs import FixedCosts
from draftproof.drafters.guards import FIRST_BUDGET, LOSS_SHARE, MOST_DEBT, LossBudget
from draftproof.drafters.policies import policy_for
from draftproof.drafters.tree import BestFirst, TreeDrafter
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.survival import FIRST_CHILDREN, STRENGTH, Offspring, Survival
from draftproof.engine.drafting import _anticipating
from draftproof.errors import ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, resolve
from draftproof.verify import VERIFIERS, get_verifier
from tests.drafters.tree.tables import TableSource, uneven_table

PLAIN_SECONDS = 0.02


def simulate(policy, *, survival, slope, draft_seconds, num_passes, seed, confidence=None):
    """(emitted, seconds, verified nodes of each pass). survival: node's rank -> the probability that it is accepted.

    A pass accepts the ranks below a random number: those of a path, as far as the policy can see.
    """
    source = random.Random(seed)
    emitted, seconds, sizes = 0, 0.0, []
    for index in range(num_passes):
        probs = survival(index)
        asked = min(policy.num_tokens(confidence), len(probs))
        size = min(policy.num_worth(probs[:asked]), asked) if isinstance(policy, CuttingNodes) else asked
        took = PLAIN_SECONDS * (1.0 + slope * size)
        accepted = sum(source.random() < prob for prob in probs[:size])
        if asked:
            policy.observe_draft_cost(size, draft_seconds)
        policy.observe(size, accepted, confidence)
        policy.observe_cost(1 + size, took)
        emitted, seconds = emitted + 1 + accepted, seconds + took + (draft_seconds if asked else 0.0)
        sizes.append(size)
    return emitted, seconds, sizes


def ranks(first, decay, num=32):
    return first * decay ** np.arange(num)


@pytest.mark.parametrize("kind", [AutoNodes, CuttingNodes])
@pytest.mark.parametrize("before", [0, 40])
def test_drafts_that_a_busy_machine_stretched_do_not_end_what_pays(kind, before):
    """Six drafts of 50 plain steps each, at the very beginning or later: within 100 passes drafting goes on."""
    policy = kind(32).for_request()
    settings = dict(survival=lambda index: ranks(0.9, 0.8), slope=0.02, seed=4)
    simulate(policy, draft_seconds=0.005, num_passes=before, **settings)
    simulate(policy, draft_seconds=50 * PLAIN_SECONDS, num_passes=6, **settings)
    _, _, sizes = simulate(policy, draft_seconds=0.005, num_passes=200, **settings)
    assert sum(size > 0 for size in sizes[100:]) > 90


def test_a_debt_is_bounded_and_a_draft_is_not_taken_for_slower_than_it_is():
    budget = LossBudget()
    budget.settle(1, 300.0)
    assert budget.steps == -MOST_DEBT and not budget.affords(1.5)
    shared = Shared()
    for seconds, expected in [(90.0, 0.0), (9.0, 2.0), (9.0, 2.2), (1.5, 2.13), (1.0, 1.0), (1.1, 1.01)]:
        shared.settle_draft(seconds, 1.0)
        assert shared.draft_seconds == pytest.approx(expected)


@pytest.mark.parametrize("make", [AutoNodes, CuttingNodes])
def test_a_drafter_that_had_nothing_to_begin_with_says_nothing_of_what_drafts_cost(make):
    """The first pass of each request may be one: were its time believed, trees would be cut to a few nodes."""
    policy = make(16)
    policy.observe_cost(1, PLAIN_SECONDS)
    for turn, (size, steps) in enumerate([(0, 0.001), (8, 9.0), (8, 0.3), (8, 0.3), (0, 0.001), (0, 0.001)]):
        policy.num_tokens(None)
        policy.observe_draft_cost(size, steps * PLAIN_SECONDS)
        assert turn < 2 or policy._shared.draft_seconds == pytest.approx(0.3 * PLAIN_SECONDS)
    # A tree that was grown and then cut to nothing took its time.
    policy.observe_draft_cost(0, 0.6 * PLAIN_SECONDS)
    assert policy._shared.draft_seconds > 0.31 * PLAIN_SECONDS


@pytest.mark.parametrize("kind", [AutoNodes, CuttingNodes])
@pytest.mark.parametrize("slope", [0.01, 0.05, 0.2])
def test_what_nothing_can_guess_costs_little(kind, slope):
    """No node is ever accepted: the loss is the budget's, and what it took to learn the costs."""
    policy = kind(32).for_request()
    none = lambda index: np.zeros(32)  # noqa: E731
    emitted, seconds, sizes = simulate(policy, survival=none, slope=slope, draft_seconds=0.005, num_passes=1500, seed=1)
    # A tree's first drafting time is learned by drafting: one draft is not in the budget.
    bound = emitted * (1 + LOSS_SHARE) + FIRST_BUDGET + 1 + 32 * slope
    assert seconds / PLAIN_SECONDS <= bound
    assert sum(size > 0 for size in sizes) < 60


@pytest.mark.parametrize("slope", [0.01, 0.05, 0.15])
@pytest.mark.parametrize(("first", "decay"), [(0.9, 0.8), (0.7, 0.9), (0.5, 0.7)])
def test_it_comes_near_the_best_fixed_budget(first, decay, slope):
    """Tokens per second over 2,000 passes, at least .95 of the best fixed n's in hindsight."""
    policy = CuttingNodes(32).for_request()
    emitted, seconds, _ = simulate(
        policy, survival=lambda index: ranks(first, decay), slope=slope, draft_seconds=0.002, num_passes=2000, seed=3
    )
    expected = np.concatenate([[0.0], np.cumsum(ranks(first, decay))])
    times = PLAIN_SECONDS * (1 + slope * np.arange(33)) + 0.002 * (np.arange(33) > 0)
    assert emitted / seconds >= 0.95 * float(((1 + expected) / times).max())


def test_it_keeps_a_pass_that_is_worth_more_nodes_longer():
    """Trees of two kinds by turns: sure ones are kept whole, the others cut short."""
    policy = CuttingNodes(32).for_request()
    kinds = [ranks(0.95, 0.97), ranks(0.4, 0.5)]
    _, _, sizes = simulate(
        policy, survival=lambda index: kinds[index % 2], slope=0.04, draft_seconds=0.001, num_passes=800, seed=5
    )
    sure, poor = sizes[400::2], sizes[401::2]
    assert np.mean([size for size in sure if size]) > 3 * np.mean([size for size in poor if size])


@given(
    survival=st.lists(st.floats(0, 1), min_size=1, max_size=12).map(lambda values: np.sort(values)[::-1]),
    slope=st.floats(0.001, 0.5),
)
def test_the_marginal_rule_is_the_best_cut(survival, slope):
    """Against brute force over every cut, at a known rate and known costs."""
    policy = CuttingNodes(12, use_clock=False).for_request()
    for _ in range(20):
        policy.num_tokens(None)
        policy.observe(0, 0, None)
    kept = policy.num_worth(survival)
    values = [sum(survival[:n]) - policy._rate() * policy._costs.of_pass(1 + n) for n in range(len(survival) + 1)]
    best = max(values) - values[0]
    assert policy.values(np.stack([survival, 0 * survival])) == pytest.approx([best, 0.0], abs=1e-12)
    assert values[kept] == pytest.approx(max(values), abs=1e-12)


@given(
    survival=st.lists(st.floats(0, 1), min_size=12, max_size=12).map(lambda values: np.sort(values)[::-1]),
    slopes=st.lists(st.floats(0.0, 0.4), min_size=12, max_size=12),
)
def test_what_a_node_has_to_be_at_least_cuts_off_nothing_that_would_be_kept(survival, slopes):
    """Whatever passes cost: a draft that ends before its first node that is too unlikely is cut as the whole one is."""
    policy = CuttingNodes(12, use_clock=False).for_request()
    policy._costs = FixedCosts(np.cumsum([1.0, *slopes]).tolist())
    kept, least = policy.num_worth(survival), policy.least_survivals(12)
    too_unlikely = np.flatnonzero(survival < least - 1e-12)
    assert kept <= (too_unlikely[0] if len(too_unlikely) else 12)


@pytest.mark.parametrize("pick", [np.max, np.mean], ids=["dearest", "mean"])
def test_another_bound_of_nodes_would_cut_off_what_is_worth_it(pick):
    """A node's own price may be above its gain where the next ones come for nothing."""
    policy = CuttingNodes(4, use_clock=False).for_request()
    policy._costs = FixedCosts([1.0, 1.6, 1.6, 1.6, 1.6])
    survival = np.array([0.28, 0.27, 0.26, 0.25])
    assert policy.num_worth(survival) == 4 and (survival >= policy.least_survivals(4)).all()
    prices = policy._priced(4).nodes
    slopes = [pick([(prices[n] - prices[m]) / (n - m) for n in range(m + 1, 5)]) for m in range(4)]
    assert (survival < slopes).any()


def test_prices_are_made_anew_after_a_few_passes_and_for_others_at_once():
    policy = settled(CuttingNodes(8).for_request())
    assert policy.num_tokens(None)
    first = policy.least_survivals(8)
    for turn in range(anticipating.TOGETHER):
        assert policy.least_survivals(8) is first, turn
        policy.observe(8, 2, None)
        policy.observe_cost(9, 1.5 * PLAIN_SECONDS)
        policy.num_tokens(None)
    assert policy.least_survivals(8) is not first
    policy.observe_cost(9, 1.5 * PLAIN_SECONDS, Load(num_requests=3, num_other_tokens=2))
    shared = policy.least_survivals(8)
    policy.num_tokens(None)
    assert policy.least_survivals(8) is not shared


def test_what_warming_up_takes_is_not_what_a_draft_costs():
    """The engine's first draft takes ten plain steps: it is not held against drafting."""
    policy = CuttingNodes(8).for_request()
    for _ in range(NUM_FIRST):
        assert policy.num_tokens(None) == 0
        policy.observe(0, 0, None)
        policy.observe_cost(1, PLAIN_SECONDS)
    for seconds in (10 * PLAIN_SECONDS, 0.2 * PLAIN_SECONDS):
        assert policy.num_tokens(None)
        policy.observe_draft_cost(4, seconds)
        policy.observe(4, 1, None)
        policy.observe_cost(5, 1.1 * PLAIN_SECONDS)
    assert policy._speed(None, 8) > 1.2


def test_without_the_clock_a_request_is_a_function_of_its_own_past():
    first = AutoNodes(16, use_clock=False)
    taught = first.for_request()
    simulate(taught, survival=lambda index: np.ones(16), slope=0.0, draft_seconds=0.0, num_passes=50, seed=1)
    untaught = AutoNodes(16, use_clock=False).for_request()
    runs = [
        simulate(
            policy, survival=lambda index: ranks(0.6, 0.8, 16), slope=0.05, draft_seconds=seconds, num_passes=60, seed=2
        )
        for policy, seconds in ((first.for_request(), 0.5), (untaught, 0.0))
    ]
    assert runs[0][2] == runs[1][2]


def test_requests_begin_with_what_others_have_learned():
    engine = CuttingNodes(16)
    simulate(
        engine.for_request(),
        survival=lambda index: ranks(0.9, 0.9, 16),
        slope=0.02,
        draft_seconds=0.001,
        num_passes=200,
        seed=1,
    )
    assert engine.for_request().num_tokens(None) == 16


@pytest.mark.parametrize("name", VERIFIERS)
def test_only_verifiers_that_no_draft_can_bias_may_look(name):
    """The type that looks at drafts reaches a drafter under replay verifiers alone."""
    verifier = get_verifier(name)
    if name in ("rejection", "block"):
        return
    chosen = "keyed" if name == "greedy" else name
    policy = policy_for(SpeculativeConfig(topology="tree", verifier=chosen), verifier).for_request()

    class Request:
        length_policy = policy

    Request.verifier = verifier
    looks = _anticipating(Request)
    assert (looks is policy) == (verifier.guarantee == "replay")
    assert looks is None or not verifier.needs_draft_law
    # A policy that anticipates is kept from an exact-law rule even if one was handed over; no other type can.
    Request.length_policy = CuttingNodes(4).for_request()
    assert (_anticipating(Request) is None) == (verifier.guarantee == "exact-law")
    assert not hasattr(AutoNodes, "num_worth") and not hasattr(AutoLength, "num_worth")


@pytest.mark.parametrize(("drafted", "accepted"), [(3, 4), (99, 0), (2, -1)])
def test_impossible_verdicts_are_refused(drafted, accepted):
    with pytest.raises(ParameterError, match="num_accepted"):
        AutoNodes(8).observe(drafted, accepted, None)


def test_survival_takes_weights_at_their_word_at_first_and_learns():
    survival = Survival()
    weights = np.log(np.array([0.9, 0.5, 0.1, 0.001]))
    before = survival.of(weights)
    assert np.all(np.diff(before) <= 0) and before[0] == pytest.approx(math.exp(-0.25))
    for _ in range(300):
        survival.observe(weights, np.array([False, False, False, False]))
    after = survival.of(weights)
    assert np.all(after < 0.05) and after[0] <= STRENGTH * math.exp(-0.25) / (220 + STRENGTH)
    assert np.all(survival.of(np.array([-math.inf, -1e9])) <= after.min())


@given(
    given=st.lists(st.tuples(st.floats(-14, 0), st.booleans()), min_size=0, max_size=60),
    wanted=st.floats(1e-5, 1.0),
)
def test_the_least_weight_of_a_survival_is_where_survivals_cross_it(given, wanted):
    survival = Survival()
    for weight, is_accepted in given:
        survival.observe(np.array([weight]), np.array([is_accepted]))
    [least] = survival.least_weights(np.array([wanted]))
    weights = np.linspace(-20, 0, 400)
    found = survival.of(weights)
    # What is likely enough is at or above it; what isn't is below, but for rounding.
    assert (weights[found >= wanted * (1 + 1e-9)] >= least).all()
    assert (found[weights > least + 1e-6] >= wanted * (1 - 1e-6)).all()


def test_nodes_of_one_bin_are_told_apart() -> None:
    survival = Survival()
    weights = np.log(np.array([0.6, 0.5, 0.4, 0.3]))
    # Nothing was verified: at their word.
    assert np.allclose(survival.of(weights), np.exp(weights))
    for _ in range(100):
        survival.observe(weights, np.array([True, False, False, False]))
    found = survival.of(weights)
    assert np.all(np.diff(found) < 0) and np.all(found[1:] < np.exp(weights)[1:])


def settled(policy, *, num_passes=40, accepted=2, added=0.5):
    """A request whose passes over 9 tokens have cost `added` plain steps more and got `accepted` tokens each."""
    for _ in range(num_passes):
        size = 8 if policy.num_tokens(None) else 0
        policy.observe_draft_cost(size, 0.0)
        policy.observe(size, accepted if size else 0, None)
        policy.observe_cost(1 + size, PLAIN_SECONDS * (1 + (added if size else 0)))
    policy.num_tokens(None)
    return policy


def test_a_round_is_run_while_it_adds_more_than_its_time_is_worth():
    """Two emitted tokens of 3 a pass and 1.5 plain steps: a round of half a plain step must add one token."""
    policy = settled(CuttingNodes(8).for_request())
    assert policy.num_expanded(np.array([1e-6])) == 1
    for num_nodes, steps in ((1, 0.5), (2, 0.6), (3, 1.2)):
        for _ in range(5):
            policy.observe_round(num_nodes, steps * PLAIN_SECONDS)
    # What the next draft's rounds are taken to cost.
    policy.num_tokens(None)
    rate = policy._rate() * PLAIN_SECONDS
    assert rate == pytest.approx(2.0, rel=0.1)
    assert policy.num_expanded(np.array([0.52 * rate])) == 1 and policy.num_expanded(np.array([0.48 * rate])) == 0
    # A second node costs .1 of a plain step more, a third .6: what they gain decides, together.
    assert policy.num_expanded(rate * np.array([0.4, 0.25])) == 2
    assert policy.num_expanded(rate * np.array([0.52, 0.05, 0.05])) == 1
    assert policy.num_expanded(rate * np.array([0.5, 0.5, 0.5])) == 2
    assert policy.num_expanded(rate * np.array([0.7, 0.7, 0.7])) == 3


def test_what_a_draft_adds_to_a_shared_pass_costs_everybody():
    """Four requests: the same seconds more cost four times the tokens, and fewer nodes are worth them."""
    survival = np.full(8, 0.2)
    worth = {}
    for num_requests in (1, 4):
        policy = CuttingNodes(8)
        for _ in range(30):
            for others in (0, 8):
                load = Load(num_requests, (num_requests - 1) * (1 + others))
                for width in (1, 9):
                    total = width + load.num_other_tokens
                    policy.observe_cost(width, PLAIN_SECONDS * (1 + 0.1 * (total - num_requests)), load)
        worth[num_requests] = policy.values(survival[None])[0]
    # Eight nodes: 1.6 tokens expected, .8 plain passes of one or of four tokens.
    assert worth[1] == pytest.approx(0.8, rel=0.05) and worth[4] == 0


def test_contexts_of_two_lengths_by_turns_have_a_level_each():
    costs = LearnedCosts()
    short, long = Load(1, 0, 100), Load(1, 0, 8000)
    for _ in range(40):
        for load, plain in ((short, 0.010), (long, 0.030)):
            costs.observe_pass(1, plain, load)
            costs.observe_pass(9, 1.5 * plain, load)
    costs.observe_pass(1, 0.010, short)
    assert costs.of_pass(1) == pytest.approx(0.010, rel=0.02) and costs.of_pass(9) == pytest.approx(0.015, rel=0.05)
    costs.observe_pass(1, 0.030, long)
    assert costs.of_pass(1) == pytest.approx(0.030, rel=0.02) and costs.of_pass(9) == pytest.approx(0.045, rel=0.05)


def test_children_are_expected_as_nodes_like_theirs_have_had_them():
    offspring = Offspring()
    assert np.array_equal(offspring.of(np.array([0, 5]), np.array([0.9, 0.1])), [FIRST_CHILDREN] * 2)
    for _ in range(400):
        offspring.observe(0, 0.8, np.array([0.64, 0.08]))
        offspring.observe(7, 0.2, np.array([0.02]))
        offspring.observe(2, 0.8, np.linspace(0.2, 0.01, 20))
    # By depth, and by the node's own survival; shares of it, the largest first.
    assert offspring.of(np.array([0]), np.array([0.7]))[0][:3] == pytest.approx([0.8, 0.1, 0.0], abs=1e-3)
    assert offspring.of(np.array([2]), np.array([0.3]))[0][:2] == pytest.approx([0.1, 0.0], abs=1e-3)
    assert offspring.of(np.array([9]), np.array([0.66]))[0][[0, -1]] == pytest.approx([0.25, 0.1625], abs=1e-3)
    assert np.array_equal(offspring.of(np.array([0, 1]), np.array([0.2, 0.9])), [FIRST_CHILDREN] * 2)
    # No child is likelier than its parent, and what can't be reached teaches nothing.
    for _ in range(400):
        offspring.observe(1, 0.5, np.array([0.6]))
    offspring.observe(1, 0.0, np.array([0.0]))
    assert offspring.of(np.array([1]), np.array([0.5]))[0][0] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("others", "gain"), [((), 0.65), ((0.1, 0.1), 0.45), ((0.4, 0.1), 0.4), ((0.6, 0.6), 0.0)])
def test_what_an_expansion_brings_is_beside_what_the_tree_has(others, gain):
    """Budget of three nodes: children replace the lightest of them, and are worth what they have more."""

    class Sum:
        def values(self, survival):
            return survival.sum(axis=1)

    drafter = TreeDrafter(TableSource(uneven_table(6, 1)), BestFirst(6, 2))
    row = resolve(SamplingParams(temperature=1.0), None, 6)
    request = DraftRequest(0, [1], 3, KeyedNoise(1), True, row, History([1]), anticipating=Sum())
    drafter._prepare(request, True)
    tree, shares = Growing(request), np.array([1.0, *others])
    tree.add(ROOT, np.arange(len(shares)), np.log(shares), PointMass(0))
    # Weights are taken at their word, and the children to be half as likely as the node, .15, .08 and so on.
    drafter._survivals = lambda tree, log_weights: np.exp(log_weights)
    assert drafter._gains(tree, request.anticipating, [0], np.array([1.0])) == pytest.approx([gain])


@pytest.mark.parametrize(("pass_seconds", "is_grown"), [(0.0002, True), (0.5 * PLAIN_SECONDS, False)])
def test_a_drafter_stops_growing_where_its_passes_cost_too_much(pass_seconds, is_grown, monkeypatch):
    """A table's laws, by a clock on which a round of expansions takes as long as it is told to."""
    now = [0.0]
    monkeypatch.setattr("draftproof.drafters.tree.drafter.perf_counter", lambda: now[0])
    table = uneven_table(6, 1)

    class Slow(TableSource):
        def laws_after(self, trees, num_new):
            now[0] += pass_seconds
            return super().laws_after(trees, num_new)

    policy, drafter = CuttingNodes(8).for_request(), TreeDrafter(Slow(table), BestFirst(6, 2, num_children=4))
    row = resolve(SamplingParams(temperature=1.0), None, 6)
    rounds = []
    for index in range(60):
        num_tokens, context = policy.num_tokens(None), [index % 6, index % 5]
        before = drafter.source.num_rounds
        ask = DraftRequest(0, context, num_tokens, KeyedNoise(index), True, row, History(context), anticipating=policy)
        draft = drafter.propose([ask])[0]
        if num_tokens:
            rounds.append(drafter.source.num_rounds - before - 1)
        policy.observe_draft_cost(len(draft), 0.0)
        policy.observe(len(draft), min(len(draft), 1), None)
        policy.observe_cost(1 + len(draft), PLAIN_SECONDS * (1 + 0.02 * len(draft)))
    assert len(rounds) > 30 and (np.mean(rounds[20:]) > 1) == is_grown


@pytest.mark.parametrize("kind", [AutoLength, AutoNodes, CuttingNodes])
def test_a_stream_of_short_requests_that_nobody_can_guess_is_probed_ever_more_rarely(kind):
    """64 tokens a request: a request that knew nothing would probe after 4, 12, 28 and 60."""
    engine, probes = kind(16), []
    for _ in range(8):
        policy = engine.for_request()
        probes.append(0)
        for _ in range(64):
            asked = policy.num_tokens(None)
            probes[-1] += asked > 0
            policy.observe(asked, 0, None)
            policy.observe_cost(1 + asked, PLAIN_SECONDS * (1 + 0.1 * asked))
    assert probes[0] >= 3 and sum(probes[4:]) <= 8
    # Text that can be guessed is noticed, and the intervals are short again.
    for _ in range(3):
        policy, drafted = engine.for_request(), 0
        for _ in range(64):
            asked = policy.num_tokens(None)
            drafted += asked > 0
            policy.observe(asked, asked, None)
            policy.observe_cost(1 + asked, PLAIN_SECONDS * (1 + 0.1 * asked))
    assert drafted > 50


def test_a_probe_is_as_long_as_is_cheap_and_is_not_grown():
    for slope, most in ((0.012, 8), (0.03, 3), (0.5, 1)):
        policy = CuttingNodes(16).for_request()
        for _ in range(300):
            asked = policy.num_tokens(None)
            policy.observe(asked, 0, None)
            policy.observe_cost(1 + asked, PLAIN_SECONDS * (1 + slope * asked))
        asked = next(filter(None, (policy.num_tokens(None) for _ in range(200))))
        assert asked == most and policy.is_probe
        assert policy.num_worth(np.zeros(asked)) == asked


def test_a_width_beyond_the_measured_ones_is_taken_to_cost_on_as_they_did():
    costs = LearnedCosts()
    for width, steps in ((1, 1.0), (9, 2.0)) * 5:
        costs.observe_pass(width, steps * PLAIN_SECONDS)
    assert costs.of_pass(33) == pytest.approx(5.0 * PLAIN_SECONDS, rel=1e-6)
    flat = LearnedCosts()
    for width, steps in ((1, 1.0), (9, 1.0)) * 5:
        flat.observe_pass(width, steps * PLAIN_SECONDS)
    assert flat.of_pass(33) == pytest.approx((1 + 24 * FIRST_SLOPE) * PLAIN_SECONDS, rel=1e-6)
