"""The two tables of simulations: an autoregressive drafter's trees beside every rival rule, and a factorised drafter's.

`autoregressive_table` and `factorised_table` give the figures; `RANKINGS` says what must hold among them, which a test
checks at the sizes of the defaults. The worlds are ours, so figures differ from other people's; rankings should not.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np

from draftproof.bench.simulation.chains import Laws, block, keyed_chain, multi_path, rejection
from draftproof.bench.simulation.runs import Figure, Ids, Rule, run
from draftproof.bench.simulation.siblings import hybrid, recursive, traversal
from draftproof.bench.simulation.trees import best_first
from draftproof.bench.simulation.worlds import Rows, Sequences, World, bimodal, diffuse

SEED: Final = 6
SHAPE: Final = (3, 2, 2, 1, 1)
"""45 nodes, as deep as many heads draft."""
DEPTH: Final = 10
BLOCK: Final = 8
NUM_SEQUENCES: Final = 160
NUM_TOKENS: Final = 120


MEDIUM, WEAK, COOL, BIMODAL = "medium, T=1", "weak, T=1", "medium, T=.5", "bimodal"


def worlds() -> list[World]:
    """A medium and a weak drafter with diffuse errors, the medium one at half the temperature, and bimodal text."""
    return [
        diffuse(MEDIUM, SEED, spread=2.5, error=1.0),
        diffuse(WEAK, SEED, spread=2.5, error=2.0),
        diffuse(COOL, SEED, spread=2.5, error=1.0, temperature=0.5),
        bimodal(BIMODAL, SEED, share_certain=0.75),
    ]


def autoregressive_rules() -> Iterator[tuple[str, int, Rule]]:
    """(name, nodes, rule)."""
    yield "chain, rejection", 8, rejection(8)
    yield "chain, block", 8, block(8)
    yield "chain, keyed, zeta 1", 8, keyed_chain(8, 1.0)
    yield "chain, argmax + match", 8, keyed_chain(8, 0.0)
    yield "multi-path block, 2 paths", 16, multi_path(2, 8)
    yield "multi-path block, 6 paths", 48, multi_path(6, 8)
    yield "recursive", 45, recursive(SHAPE)
    yield "traversal", 45, traversal(SHAPE)
    yield "hybrid", 45, hybrid(SHAPE)
    for num_nodes in (8, 16, 45):
        for noise_weight in (0.0, 0.5, 1.0):
            name = f"tree, zeta {noise_weight:g}"
            yield name, num_nodes, best_first(num_nodes, noise_weight, max_depth=DEPTH)


def autoregressive_table(
    num_sequences: int = NUM_SEQUENCES, num_tokens: int = NUM_TOKENS, seed: int = SEED
) -> Iterator[Figure]:
    """Each rule in each world."""
    for world in worlds():
        for name, num_nodes, rule in autoregressive_rules():
            yield run(
                world, name, rule, num_nodes, num_sequences=num_sequences, num_tokens=num_tokens, depth=DEPTH, seed=seed
            )


def factorised(matrix_of: str, power: float = 1.0) -> Laws:
    """Marginals of the chain after its first token: the law of depth d is row d + 1 of the matrix's powers.

    matrix_of: "target" for exact marginals, "draft" for those of a drafter that errs. power: q^power, normalised.
    """

    @lru_cache(maxsize=8)
    def table(key: int, depth: int) -> Rows:
        world = known[key]
        rows = np.linalg.matrix_power(world.target if matrix_of == "target" else world.draft, depth + 1) ** power
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))

    known: dict[int, World] = {}

    def laws(many: Sequences, first: Ids, previous: Ids, depth: int) -> Rows:
        known[id(many.world)] = many.world
        return table(id(many.world), depth)[first]

    return laws


MARKOV, MARKOV_COOL = "Markov, T=1", "Markov, T=.5"
CERTAIN, ERRING = "bimodal, mostly certain", "bimodal, mostly certain, drafter errs"


def factorised_worlds() -> list[tuple[World, str]]:
    """(world, whose marginals)."""
    certain = bimodal(CERTAIN, SEED, share_certain=0.9)
    return [
        (diffuse(MARKOV, SEED, spread=3.0, error=1.0), "target"),
        (diffuse(MARKOV_COOL, SEED, spread=3.0, error=1.0, temperature=0.5), "target"),
        (certain, "target"),
        (World(ERRING, certain.target, certain.draft), "draft"),
    ]


def factorised_rules(matrix_of: str) -> Iterator[tuple[str, int, Rule]]:
    """(name, nodes, rule)."""
    raw = factorised(matrix_of)
    for power in (1.0, 2.0, 4.0):
        laws = factorised(matrix_of, power)
        yield f"drawn from q^{power:g}, rejection", BLOCK, rejection(BLOCK, laws)
        yield f"drawn from q^{power:g}, block", BLOCK, block(BLOCK, laws)
    yield "chain, argmax + match", BLOCK, keyed_chain(BLOCK, 0.0, raw)
    for num_nodes in (16, 64):
        for noise_weight in (0.0, 0.5, 1.0):
            yield (
                f"tree, zeta {noise_weight:g}",
                num_nodes,
                best_first(num_nodes, noise_weight, max_depth=BLOCK, laws=raw),
            )


def factorised_table(
    num_sequences: int = NUM_SEQUENCES, num_tokens: int = NUM_TOKENS, seed: int = SEED
) -> Iterator[Figure]:
    """Each rule in each world."""
    for world, matrix_of in factorised_worlds():
        for name, num_nodes, rule in factorised_rules(matrix_of):
            yield run(
                world, name, rule, num_nodes, num_sequences=num_sequences, num_tokens=num_tokens, depth=BLOCK, seed=seed
            )


Cell = tuple[str, int]
"""(rule, nodes)."""
_AWARE, _PLAIN = ("tree, zeta 1", 45), ("tree, zeta 0", 45)
_RIVALS: Final[tuple[Cell, ...]] = (
    ("recursive", 45),
    ("traversal", 45),
    ("hybrid", 45),
    ("multi-path block, 6 paths", 48),
)

RANKINGS: Final[tuple[tuple[str, Cell, Cell], ...]] = (
    # At 45 nodes and capped depth the noise beats the plain tree and every rival, in every world.
    *((world, _AWARE, worse) for world in (MEDIUM, WEAK, COOL, BIMODAL) for worse in (_PLAIN, *_RIVALS)),
    # On one chain: block, then rejection, then shared noise, then the argmax.
    *((world, ("chain, block", 8), ("chain, rejection", 8)) for world in (MEDIUM, WEAK, BIMODAL)),
    *((world, ("chain, rejection", 8), ("chain, keyed, zeta 1", 8)) for world in (MEDIUM, WEAK, COOL, BIMODAL)),
    *((world, ("chain, keyed, zeta 1", 8), ("chain, argmax + match", 8)) for world in (MEDIUM, WEAK, COOL, BIMODAL)),
    # Traversal beats recursive rejection where errors are diffuse; a plain tree is the weakest at T = 1.
    *((world, ("traversal", 45), ("recursive", 45)) for world in (MEDIUM, WEAK, COOL)),
    *((world, ("recursive", 45), _PLAIN) for world in (MEDIUM, WEAK)),
    # Up to 8 nodes a block-verified chain is ahead, unless the draft is weak.
    (MEDIUM, ("chain, block", 8), ("tree, zeta 1", 8)),
    (WEAK, ("tree, zeta 1", 16), ("chain, block", 8)),
)
"""(world, better, worse) among the autoregressive table's cells."""

FACTORISED_RANKINGS: Final[tuple[tuple[str, Cell, Cell], ...]] = (
    # Half the noise beats none at equal nodes; at T = .5 by too little for a short run to tell.
    *(
        (world, ("tree, zeta 0.5", num_nodes), ("tree, zeta 0", num_nodes))
        for world in (MARKOV, CERTAIN, ERRING)
        for num_nodes in (16, 64)
    ),
    # All of it is too much where marginals are peaked, and right where the target's entropy is high.
    (MARKOV_COOL, ("tree, zeta 0.5", 64), ("tree, zeta 1", 64)),
    (MARKOV_COOL, ("tree, zeta 0", 64), ("tree, zeta 1", 64)),
    # Draws beat the argmax at high entropy, and lose where marginals are peaked unless they are sharpened.
    (MARKOV, ("drawn from q^1, block", 8), ("chain, argmax + match", 8)),
    (MARKOV_COOL, ("chain, argmax + match", 8), ("drawn from q^1, rejection", 8)),
    (MARKOV_COOL, ("drawn from q^2, block", 8), ("drawn from q^1, block", 8)),
    (MARKOV, ("drawn from q^1, block", 8), ("drawn from q^4, block", 8)),
    # Trees beat the chain that they contain.
    *((world, ("tree, zeta 0", 64), ("chain, argmax + match", 8)) for world in (MARKOV, MARKOV_COOL, CERTAIN, ERRING)),
)
"""(world, better, worse) among the factorised table's cells."""
