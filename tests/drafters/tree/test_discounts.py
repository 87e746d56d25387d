"""What is learned of each depth: a drafter that is too sure of itself further down, and the trees that follow."""

import math
import random

import numpy as np
import pytest

from draftproof.config import SpeculativeConfig
from draftproof.core import Dense
from draftproof.drafters import tree as tree_module
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree import BestFirst, Shares, TreeDrafter, tree_drafter_of
from draftproof.drafters.tree import discounts as discounts_module
from draftproof.drafters.tree.discounts import MOST_DEPTHS, NONE, Discounts
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, resolve
from draftproof.verify import get_verifier
from tests.drafters.tree.tables import TableSource, uneven_table

SHARES = (0.5, 0.3)
"""Of each node's two children, as the drafter claims."""
RIGHT = (0.9, 0.6, 0.8)
"""By which the claims of each depth are to be multiplied."""


def full_tree(depth: int):
    """Log weights, depths and parents of all nodes, level by level."""
    weights, depths, parents, level = [], [], [], [-1]
    for own in range(depth):
        after = []
        for parent in level:
            for share in SHARES:
                after.append(len(weights))
                weights.append((weights[parent] if parent >= 0 else 0.0) + math.log(share))
                depths.append(own)
                parents.append(parent)
        level = after
    return weights, depths, parents


def accepted_path(rng, parents, depths) -> list[int]:
    """Where the target goes, whose chances are the claims times RIGHT."""
    path, node = [], -1
    while True:
        children = [child for child, parent in enumerate(parents) if parent == node]
        if not children:
            return path
        draw, right = rng.random(), RIGHT[depths[children[0]]]
        chosen = next((i for i in range(2) if draw < right * sum(SHARES[: i + 1])), None)
        if chosen is None:
            return path
        node = children[chosen]
        path.append(node)


def learned(num_trees: int, observe=Discounts.observe) -> Discounts:
    """From trees that were grown with what was known by then, as they are in a drafter."""
    rng, found = random.Random(3), Discounts()
    plain, depths, parents = full_tree(3)
    for _ in range(num_trees):
        logs = found.logs
        weights = [weight + logs[: depth + 1].sum() for weight, depth in zip(plain, depths, strict=True)]
        observe(found, weights, depths, parents, accepted_path(rng, parents, depths), logs)
    return found


def check_ratios(found: Discounts) -> None:
    """Within what some 900, 700 and 300 claims of a memory of 500 trees leave open; see FORGETTING."""
    assert np.exp(found.logs[:3]) == pytest.approx(RIGHT, abs=0.09)


def test_each_depth_learns_what_its_claims_are_worth() -> None:
    check_ratios(learned(3000))


def takes_claims_that_nobody_has_tested(self, log_weights, depths, parents, path, logs):
    Discounts.observe(self, log_weights, depths, parents, path, logs)
    for node, parent in enumerate(parents):
        if parent not in {-1, *path}:
            self._claimed[depths[node]] += math.exp(log_weights[node] - log_weights[parent] - logs[depths[node]])


def forgets_what_was_in_the_weights(self, log_weights, depths, parents, path, logs):
    Discounts.observe(self, log_weights, depths, parents, path, NONE)


def counts_first_nodes_alone(self, log_weights, depths, parents, path, logs):
    Discounts.observe(self, log_weights, depths, parents, path[:1], logs)


@pytest.mark.parametrize(
    "mutant", [takes_claims_that_nobody_has_tested, forgets_what_was_in_the_weights, counts_first_nodes_alone]
)
def test_a_mutant_learns_something_else(mutant) -> None:
    with pytest.raises(AssertionError):
        check_ratios(learned(3000, mutant))


def test_a_drafter_that_claims_too_little_gets_no_more_than_its_word() -> None:
    found = Discounts()
    for _ in range(200):
        found.observe([math.log(0.2)], [0], [-1], [0], found.logs)
    assert (found.logs == 0).all()


def test_depths_that_nobody_has_reached_follow_the_one_above() -> None:
    found = Discounts()
    for _ in range(500):
        found.observe([math.log(0.9)], [0], [-1], [], found.logs)
    assert found.logs[0] < math.log(0.1) and found.logs == pytest.approx(found.logs[0])
    found.observe([], [], [], [], found.logs)
    deep = Discounts()
    chain = list(range(-1, MOST_DEPTHS + 2))
    deep.observe([math.log(0.9) * (n + 1) for n in range(len(chain))], list(range(len(chain))), chain, [], deep.logs)
    assert (deep.logs <= 0).all()


def request_of(context, num_tokens=6) -> DraftRequest:
    row = resolve(SamplingParams(temperature=1.0), None, 6)
    return DraftRequest(0, context, num_tokens, KeyedNoise(1), True, row, History(context))


def test_trees_lose_depth_where_claims_are_worth_less() -> None:
    """And nothing is learned where an earlier request must not change a later one's text."""
    source, drawn = TableSource(uneven_table(6, 1)), {}
    for learns in (True, False):
        trees = TreeDrafter(source, BestFirst(6, 8), Shares(0.0), learns_discounts=learns)
        [before] = trees.propose([request_of([1])])
        for turn in range(200):
            context = [turn % 6, turn % 5]
            [draft] = trees.propose([request_of(context)])
            children = [node for node, parent in enumerate(draft.parents) if parent == -1]
            trees.observe(0, context, first_node_alone(draft, children[0]))
        [after] = trees.propose([request_of([1])])
        drawn[learns] = before, after
    assert drawn[False][0] == drawn[False][1]
    assert sum(drawn[True][1].depths) < sum(drawn[True][0].depths)


def first_node_alone(draft, node):
    """The target goes to `node`, and from there to a token that was not drafted."""
    rows = [Dense(np.eye(7)[draft.token_ids[node]])] + [Dense(np.eye(7)[6])] * len(draft)
    return get_verifier("keyed").verify(draft, rows, KeyedNoise(0))


@pytest.mark.parametrize(
    ("fields", "learns"),
    [({}, True), ({"draft_length": "fixed"}, False), ({"verifier": "match"}, False)],
)
def test_they_are_learned_where_lengths_are(fields, learns, monkeypatch) -> None:
    monkeypatch.setattr(tree_module, "source_of", lambda drafter: TableSource(uneven_table(6, 1)))
    config = SpeculativeConfig(method="ngram", topology="tree", num_tree_nodes=8, **fields)
    made = tree_drafter_of(None, config)
    assert getattr(made, "_learns_discounts", False) is learns


def test_the_ratio_is_taken_at_its_word_at_first() -> None:
    found = Discounts()
    found.observe([math.log(0.9)], [0], [-1], [], found.logs)
    strength = discounts_module.STRENGTH
    assert found.logs[0] == pytest.approx(math.log(strength / (strength + 0.9)))
