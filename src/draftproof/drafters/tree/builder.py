"""Builders: which nodes of a growing tree get a law, and which candidates become the draft.

A builder is asked in rounds. In each it names candidates to expand, the source gives the laws after them, and their
best children become candidates. When it names none, it chooses the draft. Bounds that hold for all of them: a draft has
at most `request.num_tokens` nodes, no path is longer than `max_depth` or the request's, and siblings differ (T20a: a
duplicate could only cost, never be reached).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.tree.growing import Growing


class TreeBuilder(Protocol):
    """Stateless: one builder serves every request."""

    @property
    def name(self) -> str:
        """As in `SpeculativeConfig.tree_builder`."""
        ...

    @property
    def max_depth(self) -> int:
        """Tokens on the longest path."""
        ...

    @property
    def num_children(self) -> int:
        """How many children of a node become candidates."""
        ...

    def next_nodes(self, tree: Growing, round_index: int) -> list[int]:
        """Candidates to expand in this round, parents of what is to come; [] when the tree has grown enough."""
        ...

    def chosen(self, tree: Growing) -> NDArray[np.int64]:
        """The candidates that become the draft, closed under parents, parents before children.

        What is not worth its time is cut from the end.
        """
        ...
