"""`chain`: the best child of the best child, and so on: one path. What `topology="auto"` holds trees against.

Rule: one candidate a level, the one of the largest share. With shares that look at the noise this is
argmax(log q + zeta * G), the keyed chain's draft.
Cost: a pass of the drafter over one token for each level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.tree.growing import Growing


@dataclass(frozen=True, slots=True)
class Path:
    """max_depth: tokens of the longest draft."""

    max_depth: int
    num_children: int = 1
    name: str = "chain"

    def next_nodes(self, tree: Growing, round_index: int) -> list[int]:
        """The last token."""
        return tree.best_open(1, self.max_depth)

    def chosen(self, tree: Growing) -> NDArray[np.int64]:
        """All of it."""
        return tree.best(tree.request.num_tokens)
