"""Rules for drawn siblings on a shape of so many children for each depth, position by position; and traversal.

Sources: Sequoia 2402.12374; Hu et al. 2502.18779; Weng et al. 2505.12398.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.bench.simulation.runs import Ids, Rule
from draftproof.bench.simulation.worlds import Rows, Sequences, draw

Flags = NDArray[np.bool_]
Masses = NDArray[np.float64]
Choose = Callable[[Sequences, Rows, Rows, int], tuple[Ids, Flags]]
"""(sequences, p [A, V], q [A, V], children) -> (emitted token [A], whether it is a child [A])."""


def recursive(shape: Sequence[int]) -> Rule:
    """Recursive rejection of siblings drawn without replacement."""
    return _top_down(shape, _without_replacement)


def hybrid(shape: Sequence[int]) -> Rule:
    """The most probable siblings and one draw from the others."""
    return _top_down(shape, _ranked_and_one)


def _top_down(shape: Sequence[int], choose: Choose) -> Rule:
    def rule(many: Sequences, rows: Ids, positions: Ids, newest: Ids) -> tuple[Ids, Ids]:
        emitted, last = np.zeros(len(rows), dtype=np.int64), newest.copy()
        going = np.ones(len(rows), dtype=bool)
        for num_children in shape:
            token_ids, accepted = choose(many, many.world.target[last], many.world.draft[last], num_children)
            last = np.where(going, token_ids, last)
            emitted += going
            going &= accepted
        return emitted + going, np.where(going, draw(many.world.target[last], many.source), last)

    return rule


def _without_replacement(many: Sequences, p: Rows, q: Rows, num_children: int) -> tuple[Ids, Flags]:
    p, q = p.copy(), q.copy()
    index = np.arange(len(p))
    found, accepted = np.zeros(len(p), dtype=np.int64), np.zeros(len(p), dtype=bool)
    for _ in range(num_children):
        token_ids = draw(q, many.source)
        passed = many.source.random(len(p)) * q[index, token_ids] < p[index, token_ids]
        found = np.where(passed & ~accepted, token_ids, found)
        accepted |= passed
        p = _less(p, q)
        q[index, token_ids] = 0
        q = q / q.sum(axis=1, keepdims=True)
    return np.where(accepted, found, draw(p, many.source)), accepted


def _ranked_and_one(many: Sequences, p: Rows, q: Rows, num_children: int) -> tuple[Ids, Flags]:
    index = np.arange(len(p))
    is_ranked = np.zeros(p.shape, dtype=bool)
    if num_children > 1:
        np.put_along_axis(is_ranked, np.argsort(-q, axis=1)[:, : num_children - 1], True, axis=1)
    rest = np.where(is_ranked, 0.0, q)
    rest = rest / rest.sum(axis=1, keepdims=True)
    token_ids = draw(rest, many.source)
    passed = many.source.random(len(p)) * rest[index, token_ids] < p[index, token_ids]
    drawn = draw(_less(p, rest), many.source)
    found = np.where(passed, token_ids, drawn)
    return found, passed | is_ranked[index, drawn]


def _less(p: Rows, q: Rows) -> Rows:
    """(p - q)+ normalised; p where nothing is left."""
    left = np.maximum(p - q, 0)
    total = left.sum(axis=1, keepdims=True)
    return np.where(total > 0, left / np.where(total > 0, total, 1), p)


def traversal(shape: Sequence[int]) -> Rule:
    """Traversal verification of trees whose siblings are drawn without replacement."""

    def rule(many: Sequences, rows: Ids, positions: Ids, newest: Ids) -> tuple[Ids, Ids]:
        walk = _Walk(many, tuple(shape), len(rows))
        walk.visit(newest, np.ones(len(rows)), 0, np.ones(len(rows), dtype=bool))
        return walk.emitted, walk.last

    return rule


class _Walk:
    """One traversal of all rows' trees, node by node in one order; a row that has accepted sits out what is left."""

    def __init__(self, many: Sequences, shape: tuple[int, ...], num_rows: int) -> None:
        self.many, self.shape = many, shape
        self.emitted, self.last = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
        self._done = np.zeros(num_rows, dtype=bool)

    def visit(self, token_ids: Ids, mass: Masses, depth: int, going: Flags) -> None:
        """token_ids [A]: the node's token. mass [A]: what it is accepted with. going [A]: rows that have this node."""
        source = self.many.source
        index = np.arange(len(token_ids))
        p, q = self.many.world.target[token_ids].copy(), self.many.world.draft[token_ids].copy()
        for _ in range(self.shape[depth] if depth < len(self.shape) else 0):
            children = draw(q, source)
            ratio = mass * p[index, children] / q[index, children]
            self.visit(children, np.minimum(1.0, ratio), depth + 1, going & ~self._done)
            left = np.maximum(mass[:, None] * p - q, 0)
            total = left.sum(axis=1)
            p = np.where(total[:, None] > 0, left / np.where(total > 0, total, 1)[:, None], p)
            whole = total + 1 - mass
            mass = np.where(whole > 0, total / np.where(whole > 0, whole, 1), mass)
            q[index, children] = 0
            q = q / q.sum(axis=1, keepdims=True)
        passed = going & ~self._done & ((source.random(len(p)) < mass) if depth else np.ones(len(p), dtype=bool))
        self.emitted[passed] = depth + 1
        self.last = np.where(passed, draw(p, source), self.last)
        self._done |= passed
