"""A tree while it grows: candidates with their weights, of which the best become the draft.

A candidate's weight is the product of its path's shares, kept as a logarithm: what its builder takes for the
probability that the target gets there. A candidate that is expanded has a law after it; its children are candidates.
Arrays, so that a builder's cost does not lie in Python: adding, finding the next to expand and choosing the best are a
few array operations each, whatever the number of candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof.core import ROOT, Law
from draftproof.drafters.base import DraftRequest
from draftproof.errors import LawError

if TYPE_CHECKING:
    from draftproof.grammar import GrammarCursor
    from draftproof.sampling import History

_FIRST_CAPACITY: Final = 256
_NO_IDS: Final = np.empty((3, 0), dtype=np.int64)
_NO_WEIGHTS: Final = np.empty(0)
_NONE_OPEN: Final = np.empty(0, dtype=bool)


class Point(NamedTuple):
    """The penalties' history and the grammar after a node."""

    history: History
    grammar: GrammarCursor | None


class Growing:
    """The candidates of one request's tree.

    request: whose tree it is. token_ids, parents, depths, log_weights: [n] views; parents are candidates' indices or
    ROOT. trunk: the expanded candidates, in the order of their expansion. is_done: another round would not pay.
    is_whole: it was grown at once.
    """

    def __init__(self, request: DraftRequest) -> None:
        self.request = request
        self.num_candidates = 0
        self.is_done = self.is_whole = False
        self.trunk: list[int] = []
        self._laws: dict[int, Law] = {}
        self._children: dict[int, slice] = {}
        self._points: dict[int, Point] = {ROOT: Point(request.history, request.grammar)}
        self._ids: NDArray[np.int64] = _NO_IDS
        self._log_weights: NDArray[np.float64] = _NO_WEIGHTS
        self._is_open: NDArray[np.bool_] = _NONE_OPEN

    @property
    def token_ids(self) -> NDArray[np.int64]:
        return self._ids[0, : self.num_candidates]

    @property
    def parents(self) -> NDArray[np.int64]:
        return self._ids[1, : self.num_candidates]

    @property
    def depths(self) -> NDArray[np.int64]:
        return self._ids[2, : self.num_candidates]

    @property
    def log_weights(self) -> NDArray[np.float64]:
        return self._log_weights[: self.num_candidates]

    def add(self, parent: int, token_ids: NDArray[np.int64], log_shares: NDArray[np.float64], law: Law) -> None:
        """Children of `parent`: different token ids [K], and the logarithms of their shares [K], at most 0.

        law: the drafter's law after `parent`, which the children's histories may need.
        """
        self._laws[parent] = law
        begin, end = self.num_candidates, self.num_candidates + len(token_ids)
        if end > self._ids.shape[1]:
            more = max(_FIRST_CAPACITY, end)
            self._ids = np.concatenate([self._ids, np.empty((3, more), dtype=np.int64)], axis=1)
            self._log_weights = np.concatenate([self._log_weights, np.empty(more)])
            self._is_open = np.concatenate([self._is_open, np.empty(more, dtype=bool)])
        self._children[parent] = slice(begin, end)
        self._ids[0, begin:end] = token_ids
        self._ids[1, begin:end] = parent
        self._ids[2, begin:end] = 0 if parent == ROOT else self._ids[2, parent] + 1
        self._log_weights[begin:end] = log_shares
        if parent != ROOT:
            self._log_weights[begin:end] += self._log_weights[parent]
        self._is_open[begin:end] = True
        self.num_candidates = end

    def take(self, law: Law, fields: NDArray[np.int64], log_weights: NDArray[np.float64]) -> None:
        """These are all candidates that there will be, the heaviest first: token ids, parents and depths [3, n], log
        weights [n]. law: that after the context."""
        self.num_candidates, self.is_done, self.is_whole = len(log_weights), True, True
        self._laws[ROOT] = law
        self._ids, self._log_weights = fields, log_weights

    def expand(self, candidates: Sequence[int]) -> None:
        """These get a law: they join the trunk."""
        self._is_open[list(candidates)] = False
        self.trunk.extend(candidates)

    def best_open(self, num_wanted: int, max_depth: int) -> list[int]:
        """Up to `num_wanted` candidates without a law, of the largest weights, whose children may still be in the tree.

        Candidates below the `request.num_tokens` best ones are left out: nothing under them can be chosen.
        """
        weights = self.log_weights
        is_wanted = self._is_open[: self.num_candidates] & (self.depths + 1 < max_depth) & (weights > -np.inf)
        budget = self.request.num_tokens
        if self.num_candidates > budget:
            is_wanted &= weights > np.partition(weights, self.num_candidates - budget)[self.num_candidates - budget]
        found = np.flatnonzero(is_wanted)
        return [int(i) for i in found[np.argsort(-weights[found], kind="stable")][:num_wanted]]

    def best(self, num_wanted: int, min_log_weight: float = -np.inf) -> NDArray[np.int64]:
        """The candidates of the largest weights, the largest first: parents before children.

        Of equal ones the earlier, so that a parent is never left out where its child is in. None below
        `min_log_weight`.
        """
        weights = self.log_weights
        if self.is_whole:
            possible = np.arange(min(num_wanted, self.num_candidates))
            return possible[: np.count_nonzero(weights >= min_log_weight)]
        possible = np.flatnonzero((weights > -np.inf) & (weights >= min_log_weight))
        return possible[np.argsort(-weights[possible], kind="stable")][:num_wanted]

    def with_branches(self, chosen: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        """Of chosen candidates, parents first, those that make no more than `most` paths to a leaf."""
        kept: list[int] = []
        leaves = {ROOT}
        for candidate in chosen.tolist():
            parent = int(self.parents[candidate])
            if parent != ROOT and parent not in kept:
                continue
            if parent in leaves or len(leaves) < most:
                leaves = (leaves - {parent}) | {candidate}
                kept.append(candidate)
        return np.array(kept, dtype=np.int64)

    def heaviest(self, num_wanted: int) -> NDArray[np.float64]:
        """[<= num_wanted] the largest weights, the largest first."""
        weights = np.sort(-self.log_weights)[:num_wanted]
        heaviest: NDArray[np.float64] = -weights[weights < np.inf]
        return heaviest

    def cut(self, chosen: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """(token ids, parents) of the chosen candidates alone: closed under parents, parents before children."""
        if self.is_whole and len(chosen) and chosen[-1] == len(chosen) - 1:
            return self.token_ids[: len(chosen)].tolist(), self.parents[: len(chosen)].tolist()
        where = np.full(self.num_candidates + 1, ROOT, dtype=np.int64)
        where[chosen] = np.arange(len(chosen))
        # Index -1, the context's, is the entry after the last candidate.
        return self.token_ids[chosen].tolist(), where[self.parents[chosen]].tolist()

    def children_of(self, node: int) -> slice:
        """Where the children of an expanded candidate stand; of one without a law, nowhere."""
        return self._children.get(node, slice(0, 0))

    def law_after(self, node: int) -> Law:
        """The drafter's law after an expanded candidate, or ROOT."""
        return self._laws[node]

    def point(self, node: int) -> Point:
        """What a law after `node` (ROOT: the context) is computed with, besides the drafter's own state."""
        known = self._points.get(node)
        if known is None:
            parent, token_id = int(self.parents[node]), int(self.token_ids[node])
            above = self.point(parent)
            grammar = above.grammar.after(token_id) if above.grammar is not None else None
            try:
                history = above.history.extended((token_id,), (self._laws[parent],))
            except LawError:
                # The target's row after this node has the same error, so nothing below it is ever emitted.
                history = above.history
            known = self._points[node] = Point(history, grammar)
        return known

    def path_to(self, candidate: int) -> tuple[int, ...]:
        """Candidates from the context's child down to `candidate`; () for ROOT."""
        path = []
        while candidate != ROOT:
            path.append(candidate)
            candidate = int(self.parents[candidate])
        return tuple(reversed(path))
