"""Running a rule over sequences: tokens per pass, with an interval.

A rule takes the sequences, which are active, and the position of each one's next token, and returns how many tokens it
emits, and the last of them. Rules that replay emit the target's own tokens; others draw their own, and their sequences
go on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.bench.simulation.worlds import Sequences, World, sequences

Ids = NDArray[np.int64]
Rule = Callable[[Sequences, Ids, Ids, Ids], tuple[Ids, Ids]]
"""(sequences, rows [A], positions [A], newest tokens [A]) -> (emitted [A], newest tokens [A])."""

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Figure:
    """tokens_per_pass: emitted tokens of a pass, the bonus or recovered one counted. half_width: of the 95 % interval
    over sequences."""

    world: str
    rule: str
    num_nodes: int
    tokens_per_pass: float
    half_width: float
    num_passes: int

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def run(
    world: World, name: str, rule: Rule, num_nodes: int, *, num_sequences: int, num_tokens: int, depth: int, seed: int
) -> Figure:
    """`rule` on `num_sequences` sequences until each has `num_tokens` tokens. depth: of the deepest draft."""
    many = sequences(world, num_sequences, num_tokens + depth + 2, seed)
    rows = np.arange(num_sequences)
    positions, newest = np.ones(num_sequences, dtype=np.int64), many.token_ids[:, 0].copy()
    num_passes = np.zeros(num_sequences, dtype=np.int64)
    while len(active := rows[positions < num_tokens]):
        emitted, last = rule(many, active, positions[active], newest[active])
        positions[active] += emitted
        newest[active] = last
        num_passes[active] += 1
    mean = float((positions - 1).sum() / num_passes.sum())
    # The ratio's spread over sequences, each weighted by its passes.
    residuals = (positions - 1) - mean * num_passes
    half = NORMAL_95 * float(residuals.std(ddof=1)) / (math.sqrt(num_sequences) * float(num_passes.mean()))
    return Figure(world.name, name, num_nodes, mean, half, int(num_passes.sum()))
