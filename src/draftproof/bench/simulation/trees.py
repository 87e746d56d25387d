"""Best-first trees, with and without the target's noise, for all sequences at once; kept by the target's own tokens.

A pop takes each row's heaviest candidate into its tree and adds its best children; after `num_nodes` pops the trees are
done. A node is on the target's path if its parent is and it holds the target's token.
"""

from __future__ import annotations

import numpy as np

from draftproof.bench.simulation.chains import Laws, autoregressive
from draftproof.bench.simulation.runs import Ids, Rule
from draftproof.bench.simulation.worlds import Rows, Sequences

NUM_CHILDREN = 16


def best_first(
    num_nodes: int, noise_weight: float, *, max_depth: int, sharpness: float = 1.0, laws: Laws = autoregressive
) -> Rule:
    """Trees of `num_nodes` nodes over softmax(sharpness * (log q + zeta * G))."""

    def rule(many: Sequences, rows: Ids, positions: Ids, newest: Ids) -> tuple[Ids, Ids]:
        def ranked(previous: Ids, depths: Ids) -> tuple[Ids, Rows]:
            """The best children after tokens at depths - 1: ids and log shares [A, K]."""
            with np.errstate(divide="ignore"):
                scores = np.log(_laws_at(laws, many, newest, previous, depths))
            at = np.minimum(positions + depths, many.gumbel.shape[1] - 1)
            scores = sharpness * (scores + noise_weight * many.gumbel[rows, at])
            scores = scores - scores.max(axis=1, keepdims=True)
            scores = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
            best = np.argpartition(-scores, NUM_CHILDREN, axis=1)[:, :NUM_CHILDREN]
            return best, np.take_along_axis(scores, best, axis=1)

        accepted = _grown(many, rows, positions, newest, ranked, num_nodes, max_depth)
        return accepted + 1, many.token_ids[rows, positions + accepted]

    return rule


def _grown(many: Sequences, rows: Ids, positions: Ids, newest: Ids, ranked, num_nodes: int, max_depth: int) -> Ids:  # type: ignore[no-untyped-def]
    """[A] how many tokens of the target's own path are in the trees."""
    num_rows, index = len(rows), np.arange(len(rows))
    capacity = NUM_CHILDREN * (num_nodes + 1)
    token_ids = np.zeros((num_rows, capacity), dtype=np.int64)
    depths = np.zeros((num_rows, capacity), dtype=np.int64)
    weights = np.full((num_rows, capacity), -np.inf)
    is_on_path = np.zeros((num_rows, capacity), dtype=bool)
    accepted = np.zeros(num_rows, dtype=np.int64)

    def push(slot: int, parents: Ids, depth: Ids, weight: Rows, on_path: Rows) -> None:
        ids, shares = ranked(parents, depth)
        columns = slice(slot * NUM_CHILDREN, (slot + 1) * NUM_CHILDREN)
        token_ids[:, columns], depths[:, columns] = ids, depth[:, None]
        weights[:, columns] = np.where(depth[:, None] < max_depth, weight[:, None] + shares, -np.inf)
        wanted = many.token_ids[rows, np.minimum(positions + depth, many.token_ids.shape[1] - 1)]
        is_on_path[:, columns] = on_path[:, None] & (ids == wanted[:, None])

    push(0, newest, np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows), np.ones(num_rows, dtype=bool))
    for pop in range(num_nodes):
        best = weights.argmax(axis=1)
        is_left = weights[index, best] > -np.inf
        on_path = is_on_path[index, best] & is_left
        accepted = np.maximum(accepted, np.where(on_path, depths[index, best] + 1, 0))
        weight = np.where(is_left, weights[index, best], -np.inf)
        weights[index, best] = -np.inf
        if pop + 1 < num_nodes:
            push(pop + 1, token_ids[index, best], depths[index, best] + 1, weight, on_path)
    return accepted


def _laws_at(laws: Laws, many: Sequences, newest: Ids, previous: Ids, depths: Ids) -> Rows:
    """Rows of one depth each."""
    if laws is autoregressive:
        return laws(many, newest, previous, 0)
    found = np.empty((len(newest), many.world.target.shape[0]))
    for depth in np.unique(depths):
        here = depths == depth
        found[here] = laws(many, newest[here], previous[here], int(depth))
    return found
