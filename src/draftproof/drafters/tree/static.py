"""`static`: a tree whose shape is fixed before anything is drafted; ranks are filled with tokens.

A shape is a list of parents in level order; the k-th child of a node is its k-th best token (or its k-th draw, see
`sampled`). `shape_for(n, max_depth)` gives the shape of n nodes that is best if a node's k-th child is the target's
with probability ACCEPTANCE * DECAY^k: best-first over products of these.
Since the shape knows no token, it is right under ratio tests too.
Source: Medusa (2401.10774) and Sequoia (2402.12374, section 3.1) fix trees by measured rank acceptance. Deviation: a
geometric rule in place of a measured table, so that any n and any drafter has a shape.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftproof.core import ROOT
from draftproof.drafters.tree.growing import Growing

Shape: TypeAlias = tuple[int, ...]
"""Each node's parent, level by level, siblings side by side."""

ACCEPTANCE: Final = 0.6
DECAY: Final = 0.35


@lru_cache(maxsize=512)
def shape_for(num_nodes: int, max_depth: int, acceptance: float = ACCEPTANCE, decay: float = DECAY) -> Shape:
    """The best shape of `num_nodes` nodes under the geometric rule; see the module."""
    # (negated weight, path of ranks): the heap's order over equal weights is that of the ranks.
    heap: list[tuple[float, tuple[int, ...]]] = [(-acceptance, (0,))]
    paths: list[tuple[int, ...]] = []
    while heap and len(paths) < num_nodes:
        weight, path = heapq.heappop(heap)
        paths.append(path)
        heapq.heappush(heap, (weight * decay, (*path[:-1], path[-1] + 1)))
        if len(path) < max_depth:
            heapq.heappush(heap, (weight * acceptance, (*path, 0)))
    return _in_level_order(paths)


def paths_for(num_nodes: int, max_depth: int) -> Shape:
    """Equal paths that part at the context: as deep as `max_depth` allows, at least two where there are two nodes."""
    if num_nodes < 1:
        return ()
    num_paths = max(2, -(-num_nodes // max_depth)) if num_nodes > 1 else 1
    depth = min(max_depth, num_nodes // num_paths)
    return _in_level_order([(path, *(0,) * level) for path in range(num_paths) for level in range(depth)])


def _in_level_order(paths: Sequence[tuple[int, ...]]) -> Shape:
    ordered = sorted(paths, key=lambda path: (len(path), path))
    index = {path: node for node, path in enumerate(ordered)}
    return tuple(index[path[:-1]] if len(path) > 1 else ROOT for path in ordered)


def num_children_of(shape: Shape) -> dict[int, int]:
    """Node (ROOT: the context) -> how many children it has."""
    counts: dict[int, int] = {}
    for parent in shape:
        counts[parent] = counts.get(parent, 0) + 1
    return counts


@dataclass(frozen=True, slots=True)
class Static:
    """The k-th child of a node is its k-th best token. num_children: the most children that a node may have."""

    max_depth: int
    num_children: int = 16
    name: str = "static"

    def next_nodes(self, tree: Growing, round_index: int) -> list[int]:
        """The nodes of level `round_index` that have children in the shape."""
        filled = self._filled(tree)
        counts = num_children_of(self._shape(tree))
        wanted = [candidate for node, candidate in filled.items() if counts.get(node)]
        return [candidate for candidate in wanted if tree.depths[candidate] == round_index]

    def chosen(self, tree: Growing) -> NDArray[np.int64]:
        """The candidates at the shape's nodes; nodes for which there are too few tokens are left out."""
        return np.array(sorted(self._filled(tree).values()), dtype=np.int64)

    def _shape(self, tree: Growing) -> Shape:
        return shape_for(tree.request.num_tokens, tree.request.deepest(self.max_depth))

    def _filled(self, tree: Growing) -> dict[int, int]:
        """Node of the shape -> candidate, for what has grown so far."""
        children: dict[int, list[int]] = {}
        for candidate, parent in enumerate(tree.parents.tolist()):
            children.setdefault(parent, []).append(candidate)
        filled: dict[int, int] = {}
        ranks: dict[int, int] = {}
        for node, parent in enumerate(self._shape(tree)):
            above = ROOT if parent == ROOT else filled.get(parent)
            rank = ranks[parent] = ranks.get(parent, -1) + 1
            if above is not None and rank < len(children.get(above, ())):
                filled[node] = children[above][rank]
        return filled
