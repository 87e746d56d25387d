"""`top_k`: at each level the k candidates of the largest weights, all of them in the draft.

Rule: level d + 1 is the k best children of level d's k nodes, until `num_tokens` nodes are there or `max_depth` is
reached. The last level is cut to what is left.
Cost: one pass of the drafter for each level.
Source: the beam that EAGLE-2 (2406.16858, section 4.1) expands, without its reranking.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.tree.growing import Growing


@dataclass(frozen=True, slots=True)
class TopK:
    """num_children: k, both of a level and of a node."""

    max_depth: int
    num_children: int = 4
    name: str = "top_k"

    def next_nodes(self, tree: Growing, round_index: int) -> list[int]:
        """The last level's k best."""
        depth = round_index
        if (
            depth + 1 >= tree.request.deepest(self.max_depth)
            or self.num_children * (depth + 1) >= tree.request.num_tokens
        ):
            return []
        return [int(node) for node in _level(tree, depth, self.num_children)]

    def chosen(self, tree: Growing) -> NDArray[np.int64]:
        """Every level's k best, cut at `num_tokens`."""
        deepest = int(tree.depths.max(initial=-1))
        levels = [_level(tree, depth, self.num_children) for depth in range(deepest + 1)]
        kept = np.concatenate(levels) if levels else np.empty(0, dtype=np.int64)
        return np.sort(kept[: tree.request.num_tokens])


def _level(tree: Growing, depth: int, num_wanted: int) -> NDArray[np.int64]:
    """The best candidates of a depth, the best first; their parents are the best of the depth above, being expanded."""
    weights = tree.log_weights
    found = np.flatnonzero((tree.depths == depth) & (weights > -np.inf))
    return found[np.argsort(-weights[found], kind="stable")][:num_wanted]
