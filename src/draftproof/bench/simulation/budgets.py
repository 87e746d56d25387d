"""Every rule at equal numbers of nodes, 8 to 64, with depth to spare: chains may be as long as the budget.

`budget_table` gives the figures; `BUDGET_RANKINGS` says what must hold among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from draftproof.bench.simulation.chains import block, multi_path, rejection
from draftproof.bench.simulation.runs import Figure, Rule, run
from draftproof.bench.simulation.tables import BIMODAL, COOL, MEDIUM, SEED, WEAK, Cell, worlds
from draftproof.bench.simulation.trees import best_first

BUDGETS: Final = (8, 16, 32, 64)
LONGEST: Final = 32
"""Tokens of the longest path: a chain of 64 would be longer than most runs of accepted tokens."""
TREE_DEPTH: Final = 16
NUM_SEQUENCES: Final = 96
NUM_TOKENS: Final = 96


def budget_rules(num_nodes: int) -> Iterator[tuple[str, Rule]]:
    """(name, rule) of that many nodes; paths of a multi-path draft share them."""
    length = min(num_nodes, LONGEST)
    yield "chain, rejection", rejection(length)
    yield "chain, block", block(length)
    for num_paths in (2, 4):
        yield f"multi-path block, {num_paths} paths", multi_path(num_paths, num_nodes // num_paths)
    for noise_weight in (0.0, 1.0):
        depth = min(num_nodes, TREE_DEPTH)
        yield f"tree, zeta {noise_weight:g}", best_first(num_nodes, noise_weight, max_depth=depth)


def budget_table(
    num_sequences: int = NUM_SEQUENCES, num_tokens: int = NUM_TOKENS, seed: int = SEED
) -> Iterator[Figure]:
    """Each rule at each budget in each world."""
    for world in worlds():
        for num_nodes in BUDGETS:
            for name, rule in budget_rules(num_nodes):
                yield run(
                    world,
                    name,
                    rule,
                    num_nodes,
                    num_sequences=num_sequences,
                    num_tokens=num_tokens,
                    depth=LONGEST,
                    seed=seed,
                )


_OTHERS: Final = ("chain, rejection", "chain, block", "multi-path block, 2 paths", "tree, zeta 0")


def _ahead(
    world: str, better: str, worse: tuple[str, ...], budgets: tuple[int, ...]
) -> Iterator[tuple[str, Cell, Cell]]:
    for num_nodes in budgets:
        for name in worse:
            yield world, (better, num_nodes), (name, num_nodes)


BUDGET_RANKINGS: Final[tuple[tuple[str, Cell, Cell], ...]] = (
    # The noise beats the plain tree at every budget in every world.
    *(rank for world in (MEDIUM, WEAK, COOL, BIMODAL) for rank in _ahead(world, "tree, zeta 1", _OTHERS[3:], BUDGETS)),
    # A weak drafter's or a cool target's draft: the noise beats everything once there are 32 nodes; at 16 already, by
    # too little for a short run to tell, as is what two paths lose to it at 32 nodes and T = .5.
    *_ahead(WEAK, "tree, zeta 1", _OTHERS, (32, 64)),
    *_ahead(COOL, "tree, zeta 1", ("chain, rejection", "chain, block"), (32,)),
    *_ahead(COOL, "tree, zeta 1", _OTHERS, (64,)),
    # A good drafter with diffuse errors: the long block-verified chain, up to 16 nodes.
    *_ahead(MEDIUM, "chain, block", ("tree, zeta 1", "chain, rejection"), (8, 16)),
)
"""(world, better, worse) among the table's cells."""
