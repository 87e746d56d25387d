"""Simulated rules agree with the production rules, and the tables rank as they should."""

import numpy as np
import pytest

from draftproof.bench.simulation import budgets, chains, siblings, tables, trees
from draftproof.bench.simulation.runs import run
from draftproof.bench.simulation.worlds import NUM_TOKENS, bimodal, diffuse, sequences
from draftproof.core import Siblings
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree import BestFirst, SampledTreeDrafter, Shares, TreeDrafter
from draftproof.drafters.tree.static import num_children_of
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, resolve
from draftproof.verify import get_verifier
from draftproof.verify.exact import target_rows
from draftproof.verify.tables import LawTable
from tests.drafters.tree.tables import TableSource

WORLD = diffuse("test", 1, spread=2.0, error=1.2)
STATE = 7
TABLES = [
    LawTable(NUM_TOKENS, lambda context, rows=rows: rows[context[-1]], exact=False)
    for rows in (WORLD.target, WORLD.draft)
]


def paths_32(num_nodes, max_depth):
    return (-1, -1, -1, 0, 1, 2)


def tree_321(num_nodes, max_depth):
    """Three children of the context, and two of each."""
    return (-1, -1, -1, 0, 0, 1, 1, 2, 2)


def chain_3(num_nodes, max_depth):
    return (-1, 0, 1)


CASES = {
    "rejection": (chains.rejection(3), chain_3, 3),
    "block": (chains.block(3), chain_3, 3),
    "multi_path_block": (chains.multi_path(3, 2), paths_32, 6),
    "recursive": (siblings.recursive((3, 2)), tree_321, 9),
    "hybrid": (siblings.hybrid((3, 2)), tree_321, 9),
    "traversal": (siblings.traversal((3, 2)), tree_321, 9),
}


def simulated(rule, num_rows):
    """[num_rows] tokens that a pass from STATE emits."""
    many = sequences(WORLD, num_rows, 8, 3)
    many.token_ids[:, 0] = STATE
    log_target = np.log(WORLD.target)
    for position in range(1, 8):
        scores = log_target[many.token_ids[:, position - 1]] + many.gumbel[:, position]
        many.token_ids[:, position] = scores.argmax(axis=1)
    emitted, _ = rule(many, np.arange(num_rows), np.ones(num_rows, dtype=np.int64), many.token_ids[:, 0])
    return emitted


def produced(verifier, drafter, num_seeds, num_nodes):
    """[num_seeds] tokens that the engine's own rule emits from STATE."""
    row = resolve(SamplingParams(), None, NUM_TOKENS)
    emitted = []
    for seed in range(num_seeds):
        noise = KeyedNoise(seed)
        share = verifier.guarantee == "replay"
        request = DraftRequest(0, [0, STATE], num_nodes, noise, share, row, History([0, STATE]))
        [draft] = drafter.propose([request])
        emitted.append(len(verifier.verify(draft, target_rows(TABLES[0], (0, STATE), draft), noise).token_ids))
    return np.array(emitted)


def agree(first, second):
    """Two means within 4.9 standard errors: one false alarm in a million for a case."""
    error = np.sqrt(first.var() / len(first) + second.var() / len(second))
    return abs(first.mean() - second.mean()) < 4.9 * error


@pytest.mark.parametrize("name", CASES)
def test_a_simulated_rule_accepts_what_the_production_rule_does(name):
    rule, shape, num_nodes = CASES[name]
    verifier = get_verifier(name)
    drafter = SampledTreeDrafter(
        TableSource(TABLES[1]), verifier.siblings or Siblings.INDEPENDENT, max_depth=3, shape=shape
    )
    assert sum(num_children_of(shape(0, 0)).values()) == num_nodes
    assert agree(simulated(rule, 20_000), produced(verifier, drafter, 500, num_nodes))


@pytest.mark.parametrize("noise_weight", [0.0, 0.5, 1.0])
def test_a_simulated_tree_accepts_what_the_engines_tree_does(noise_weight):
    drafter = TreeDrafter(TableSource(TABLES[1]), BestFirst(4, num_per_round=8), Shares(noise_weight))
    rule = trees.best_first(12, noise_weight, max_depth=4)
    assert agree(simulated(rule, 20_000), produced(get_verifier("keyed"), drafter, 500, 12))


def test_the_targets_law_and_noise_are_always_right():
    """q = p and zeta = 1: every token of a chain is the target's own."""
    emitted = simulated(
        chains.keyed_chain(4, 1.0, lambda many, first, previous, depth: many.world.target[previous]), 500
    )
    assert (emitted == 5).all()


def test_worlds_are_what_they_say():
    assert 0.25 < diffuse("m", 6, spread=2.5, error=1.0).total_variation < 0.35
    world = bimodal("b", 6, share_certain=0.75)
    weights = np.linalg.matrix_power(world.target, 200)[0]
    certain = world.target.max(axis=1) > 0.9
    assert 0.5 < weights[certain].sum() < 0.75
    assert np.allclose(world.target.sum(axis=1), 1) and np.allclose(world.draft.sum(axis=1), 1)


def figures(table, rankings, names, **sizes):
    wanted = {(world, *cell) for world, better, worse in rankings for cell in (better, worse)}
    found = {}
    for world, rules in table:
        for name, num_nodes, rule in rules:
            if (world.name, name, num_nodes) in wanted:
                found[world.name, name, num_nodes] = run(world, name, rule, num_nodes, seed=tables.SEED, **sizes)
    assert set(found) == wanted
    return found


@pytest.mark.parametrize(
    ("rankings", "table", "depth"),
    [
        (tables.RANKINGS, lambda: [(w, tables.autoregressive_rules()) for w in tables.worlds()], tables.DEPTH),
        (
            tables.FACTORISED_RANKINGS,
            lambda: [(w, tables.factorised_rules(m)) for w, m in tables.factorised_worlds()],
            tables.BLOCK,
        ),
        (
            budgets.BUDGET_RANKINGS,
            lambda: [
                (w, [(name, n, rule) for n in budgets.BUDGETS for name, rule in budgets.budget_rules(n)])
                for w in tables.worlds()
            ],
            budgets.LONGEST,
        ),
    ],
    ids=["autoregressive", "factorised", "equal budgets"],
)
def test_the_tables_rank_as_they_should(rankings, table, depth):
    """Seeds fixed; better and worse are apart by more than half of their half-widths' sum."""
    found = figures(table(), rankings, None, num_sequences=60, num_tokens=60, depth=depth)
    for world, better, worse in rankings:
        high, low = found[world, *better], found[world, *worse]
        apart = (high.half_width + low.half_width) / 2
        assert high.tokens_per_pass - low.tokens_per_pass > apart, (world, better, worse)


def test_an_interval_covers():
    """40 runs of 20 sequences: their 95 % intervals hold the mean of a long run; at most 8 may miss (P < 1e-4)."""
    rule = chains.rejection(4)
    sizes = {"num_tokens": 60, "depth": 5}
    long = run(WORLD, "rejection", rule, 4, num_sequences=2000, seed=99, **sizes).tokens_per_pass
    runs = [run(WORLD, "rejection", rule, 4, num_sequences=20, seed=seed, **sizes) for seed in range(40)]
    assert sum(abs(figure.tokens_per_pass - long) > figure.half_width for figure in runs) <= 8
