"""Laws from the context's own repetitions, for n-gram and suffix drafters: what followed before, by how often.

suffix: after each node the longest suffix of (context, path) that repeats, and the counts of what followed it.
ngram: the last MAX_OCCURRENCES earlier occurrences of the longest n-gram; after a path, the counts of what followed it
among those that went the same way.
Counts of few occurrences are surer of themselves than they should be, so each level is discounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Final

import numpy as np

from draftproof.core import Law, PointMass, Sparse
from draftproof.drafters.automaton import Place
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.source import DrafterSource

MAX_OCCURRENCES: Final = 32
DISCOUNT: Final = 0.85
"""A level's weight, in place of the 1 of unanimous counts."""


class SuffixSource(DrafterSource[SuffixDrafter]):
    """Laws from a suffix automaton's counts."""

    costs_passes = False
    log_discount = log(DISCOUNT)

    def __init__(self, drafter: SuffixDrafter) -> None:
        super().__init__(drafter)
        self._places: dict[int, dict[tuple[int, ...], Place]] = {}

    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The counts after each context's longest repeated suffix."""
        self._places = {request.slot: {} for request in requests}
        return [self._law_at(request, (), None) for request in requests]

    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """The counts after each node's path."""
        return [
            [self._law_after(tree, node) for node in tree.trunk[-num:]]
            for tree, num in zip(trees, num_new, strict=True)
        ]

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """Forgets the places in the automaton."""
        self._places = {}

    def _law_after(self, tree: Growing, node: int) -> Law | None:
        path = tuple(int(tree.token_ids[index]) for index in tree.path_to(node))
        return self._law_at(tree.request, path, self._places[tree.request.slot].get(path))

    def _law_at(self, request: DraftRequest, path: tuple[int, ...], place: Place | None) -> Law | None:
        automaton = self.drafter.contexts.up_to_date(request.slot, request.context_ids)
        match = self.drafter.match(automaton, automaton.tail if place is None else place)
        if match is None:
            return None
        followers = automaton.followers(match.state)
        for follower in followers:
            self._places[request.slot][(*path, follower.token_id)] = Place(follower.state, match.length + 1)
        return law_of_counts({follower.token_id: follower.num_occurrences for follower in followers})


class NgramSource(DrafterSource[NgramDrafter]):
    """Laws from the occurrences of the longest matching n-gram."""

    costs_passes = False
    log_discount = log(DISCOUNT)

    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The counts of what followed each context's longest n-gram."""
        return [self._law_at(request, ()) for request in requests]

    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """The counts among the occurrences that went on as the node's path does."""
        return [
            [self._law_at(tree.request, tuple(tree.token_ids[list(tree.path_to(node))])) for node in tree.trunk[-num:]]
            for tree, num in zip(trees, num_new, strict=True)
        ]

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """Nothing to do."""

    def _law_at(self, request: DraftRequest, path: tuple[int, ...]) -> Law | None:
        index = self.drafter.contexts.up_to_date(request.slot, request.context_ids)
        ids, depth = index.token_ids, len(path)
        counts = Counter(
            ids[end + 1 + depth]
            for end in index.ends(MAX_OCCURRENCES)
            if end + 1 + depth < len(ids) and tuple(ids[end + 1 : end + 1 + depth]) == path
        )
        return law_of_counts(counts)


def law_of_counts(counts: Mapping[int, int]) -> Law | None:
    """Shares of counts, None without any."""
    if len(counts) <= 1:
        return next((PointMass(token_id) for token_id in counts), None)
    token_ids = np.array(sorted(counts), dtype=np.int64)
    numbers = np.array([counts[int(token_id)] for token_id in token_ids], dtype=np.float64)
    return Sparse(token_ids, numbers / numbers.sum())
