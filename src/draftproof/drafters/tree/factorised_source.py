"""Laws from a drafter whose slots don't see each other: one pass gives a law for each depth, and trees need no further.

A depth's law is one object for all nodes of that depth, so that its candidates are ranked once.
Source: DDTree (2604.12989) over DFlash's marginals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.core import Law, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree.growing import Growing


class DepthLaws(Protocol):
    """What a block drafter offers for trees, besides a `Drafter`'s `observe`, `release` and `confidence`."""

    method: str

    def depth_laws(self, requests: Sequence[DraftRequest]) -> list[list[Law]]:
        """For each request the laws of its next tokens, by depth; [] where nothing can be drafted."""
        ...

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None: ...

    def release(self, slot: int) -> None: ...

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None: ...

    @property
    def proposes_without_confidence(self) -> bool: ...


class FactorisedSource:
    """The laws of `drafter.depth_laws`, asked for once for each draft."""

    max_depth: int | None = None
    costs_passes = False
    log_discount = 0.0

    def __init__(self, drafter: DepthLaws) -> None:
        self.drafter = drafter
        self.method = drafter.method
        self._tables: dict[int, list[Law]] = {}

    @property
    def proposes_without_confidence(self) -> bool:
        """As the drafter's."""
        return self.drafter.proposes_without_confidence

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

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """As the drafter's."""
        self.drafter.observe(slot, context_ids, verdict)

    def release(self, slot: int) -> None:
        """As the drafter's."""
        self.drafter.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """As the drafter's."""
        return self.drafter.confidence(slot, context_ids)

    def _law(self, tree: Growing, depth: int) -> Law | None:
        table = self._tables[tree.request.slot]
        return table[depth] if depth < len(table) else None
