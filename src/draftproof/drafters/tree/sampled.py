"""Trees that are drawn, for ratio tests: a shape fixed before anything is drawn, and siblings as the rule wants them.

Rule: level by level, the children of each node are drawn from the drafter's law after it by `Draft.draw_children`,
as many as the shape has there; a law of fewer tokens has fewer. The law may be sharpened, q^sharpness: that is then the
law that the tokens are drawn from.
Noise: Key(DRAFT, start, node) for each drawn node, fresh in every pass.
Why exact: tokens and laws are born together; the shape is a function of the number of nodes alone.
After equal paths the law is computed once, and is one object: rules for paths compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from draftproof.core import ROOT, Draft, Law, Siblings, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.sharpened import sharpened
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.source import LawSource
from draftproof.drafters.tree.static import Shape, num_children_of, shape_for

ShapeFor: TypeAlias = Callable[[int, int], Shape]
"""(number of nodes, longest path) -> shape."""


class SampledTreeDrafter:
    """Drawn trees from `source`, for a verifier that wants `siblings`.

    max_depth: of the longest path. shape: `static.shape_for`, or `static.paths_for` for rules over paths. sharpness:
    the power that the drafter's laws are raised to before they are drawn from.
    """

    grows_trees = True

    def __init__(
        self,
        source: LawSource,
        siblings: Siblings,
        *,
        max_depth: int,
        shape: ShapeFor = shape_for,
        sharpness: float = 1.0,
    ) -> None:
        self.source, self.siblings = source, siblings
        self.max_depth, self.shape, self.sharpness = max_depth, shape, sharpness
        self.method = source.method

    @property
    def proposes_without_confidence(self) -> bool:
        """As the source's."""
        return self.source.proposes_without_confidence

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One tree for each request; see `Drafter.propose`."""
        drawings = [_Drawing(request, self._shape(request)) for request in requests]
        wanted = [drawing for drawing in drawings if drawing.request.num_tokens > 0]
        laws = self.source.root_laws([drawing.request for drawing in wanted])
        for drawing, law in zip(wanted, laws, strict=True):
            if law is not None:
                self._draw(drawing, ROOT, law)
        for depth in range(self.max_depth - 1):
            asked = [(drawing, nodes) for drawing in wanted if (nodes := drawing.parents_at(depth))]
            if not asked:
                break
            firsts = [drawing.first_of_each_path(nodes) for drawing, nodes in asked]
            for (drawing, _), nodes in zip(asked, firsts, strict=True):
                drawing.tree.expand(nodes)
            found = self.source.laws_after([drawing.tree for drawing, _ in asked], [len(nodes) for nodes in firsts])
            for (drawing, nodes), first, after in zip(asked, firsts, found, strict=True):
                by_path = {drawing.path_ids(node): self._sharpened(law) for node, law in zip(first, after, strict=True)}
                for node in nodes:
                    law = by_path[drawing.path_ids(node)]
                    if law is not None:
                        self._draw(drawing, node, law)
        self.source.end_of_round([drawing.request for drawing in wanted])
        return [drawing.draft for drawing in drawings]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """As the source's."""
        self.source.observe(slot, context_ids, verdict)

    def release(self, slot: int) -> None:
        """As the source's."""
        self.source.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """As the source's."""
        return self.source.confidence(slot, context_ids)

    def _shape(self, request: DraftRequest) -> Shape:
        return self.shape(request.num_tokens, request.deepest(self.max_depth))

    def _sharpened(self, law: Law | None) -> Law | None:
        return None if law is None else sharpened(law, self.sharpness)

    def _draw(self, drawing: _Drawing, parent: int, law: Law) -> None:
        drawing.draw(self._sharpened(law) if parent == ROOT else law, self.siblings, parent)


class _Drawing:
    """One request's tree: the draft, and its nodes as candidates of the same indices for the source."""

    def __init__(self, request: DraftRequest, shape: Shape) -> None:
        self.request = request
        self.tree = Growing(request)
        self.draft = Draft.empty(len(request.context_ids))
        self._counts = num_children_of(shape)
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(shape):
            self._children.setdefault(parent, []).append(node)
        # Node of the draft -> node of the shape.
        self._in_shape: dict[int, int] = {ROOT: ROOT}
        # Path -> the first node at its end.
        self._first: dict[tuple[int, ...], int] = {}

    def draw(self, law: Law | None, siblings: Siblings, parent: int) -> None:
        if law is None:
            return
        above = self._in_shape[parent]
        begin = len(self.draft)
        self.draft = self.draft.draw_children(
            law, self.request.noise, self._counts.get(above, 0), siblings=siblings, parent=parent
        )
        new = range(begin, len(self.draft))
        self._in_shape.update(zip(new, self._children.get(above, ()), strict=False))
        ids = np.array(self.draft.token_ids[begin:], dtype=np.int64)
        # The source has computed one law for all equal paths, after the first of them: what follows any stands there.
        above_in_tree = ROOT if parent == ROOT else self._first.setdefault(self.path_ids(parent), parent)
        self.tree.add(above_in_tree, ids, np.zeros(len(ids)), law)

    def parents_at(self, depth: int) -> list[int]:
        """Nodes of that depth that have children in the shape."""
        return [
            node
            for node, below in enumerate(self.draft.depths)
            if below == depth and self._counts.get(self._in_shape[node])
        ]

    def path_ids(self, node: int) -> tuple[int, ...]:
        return tuple(self.draft.token_ids[index] for index in self.draft.path_to(node))

    def first_of_each_path(self, nodes: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(self._first.setdefault(self.path_ids(node), node) for node in nodes))
