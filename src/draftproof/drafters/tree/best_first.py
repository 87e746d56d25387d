"""`best_first`: the tree of the largest weights. With plain shares this is EAGLE-2's and DDTree's tree.

Rule: in each round the `num_per_round` candidates of the largest weights are expanded; the draft is the `num_tokens`
candidates of the largest weights. It ends when no candidate without a law is among these: then the tree is the best one
for these shares, since a child weighs no more than its parent; or after `max_rounds`, when the drafter's passes cost
more than what they would still find.
Cost: a round is one pass of the drafter, so at most `max_rounds` + 1 passes.
Sources: EAGLE-2 (2406.16858) expands level by level and reranks at the end; DDTree (2604.12989) takes the heap's order
over marginals; Sequoia (2402.12374) for the optimality of the greedy choice. Deviation: candidates of any depth compete
in each round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.tree.growing import Growing


@dataclass(frozen=True, slots=True)
class BestFirst:
    """num_per_round: expansions in one pass of the drafter. max_rounds: None to go on to the best tree. min_log_weight:
    candidates of less are left out.
    """

    max_depth: int
    num_per_round: int = 8
    num_children: int = 16
    max_rounds: int | None = None
    min_log_weight: float = -float("inf")
    name: str = "best_first"

    def next_nodes(self, tree: Growing, round_index: int) -> list[int]:
        """The best candidates without a law."""
        if self.max_rounds is not None and round_index >= self.max_rounds:
            return []
        return tree.best_open(self.num_per_round, tree.request.deepest(self.max_depth))

    def chosen(self, tree: Growing) -> NDArray[np.int64]:
        """The best of all."""
        return tree.best(tree.request.num_tokens, self.min_log_weight)
