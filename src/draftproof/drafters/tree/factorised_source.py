"""Laws from a drafter whose slots don't see each other: one pass gives a law for each depth, and trees need no further.

A depth's law is one object for all nodes of that depth, so that its candidates are ranked once.
Source: DDTree (2604.12989) over DFlash's marginals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.core import Law
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.source import Asked, DrafterSource


class DepthLaws(Asked, Protocol):
    """What a block drafter offers for trees."""

    def depth_laws(self, requests: Sequence[DraftRequest]) -> list[list[Law]]:
        """For each request the laws of its next tokens, by depth; [] where nothing can be drafted."""
        ...


class FactorisedSource(DrafterSource[DepthLaws]):
    """The laws of `drafter.depth_laws`, asked for once for each draft."""

    costs_passes = False

    def __init__(self, drafter: DepthLaws) -> None:
        super().__init__(drafter)
        self._tables: dict[int, list[Law]] = {}

    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The drafter's one pass; the laws of depth 0."""
        tables = self.drafter.depth_laws(requests)
        self._tables = {request.slot: table for request, table in zip(requests, tables, strict=True)}
        return [table[0] if table else None for table in tables]

    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """The laws of the next depths; None beyond the block."""
        return [
            [self._law(tree, int(depth) + 1) for depth in tree.depths[tree.trunk[-num:]]]
            for tree, num in zip(trees, num_new, strict=True)
        ]

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """Forgets the tables."""
        self._tables = {}

    def _law(self, tree: Growing, depth: int) -> Law | None:
        table = self._tables[tree.request.slot]
        return table[depth] if depth < len(table) else None
