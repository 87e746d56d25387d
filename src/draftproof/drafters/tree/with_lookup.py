"""Another source's laws, mixed with what followed where the text repeats itself.

Rule: after each node, where the longest suffix of (context, path) that occurred before has `min_match_length` tokens or
more, its law is (1 - w) q + w c: q the source's, c the shares of what followed that suffix. w is how often such a
match was right where q wasn't already, learned on line: the mixture's weight by expectation maximisation, of each class
of matches (how long, whether one token alone followed) apart.
Noise: none of its own; the tree's scores look at the mixture as at any law.
Why exact: a law that only ranks a tree's candidates, whose draft is point masses.
Edge cases: where the source has no law (beyond a block, or where masks leave none of its tokens) nothing is drafted;
elsewhere a match brings in tokens that the drafter's vocabulary leaves out.
Sources: mixtures of experts' predictions, Cesa-Bianchi and Lugosi 2006, chapter 3; SuffixDecoding 2411.04975 takes one
drafter or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from draftproof.core import ROOT, Law, PointMass, Sparse, Verdict
from draftproof.drafters.automaton import Place
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.lookup_sources import law_of_counts
from draftproof.drafters.tree.scores import NoiseScores
from draftproof.drafters.tree.source import Bounds, Grown, LawSource, Look

FIRST_WEIGHT: Final = 0.3
"""Of a class of matches that hasn't been seen yet,"""
FIRST_COUNT: Final = 8
"""which counts as so many matches."""
MOST_COUNT: Final = 400
"""Matches that a weight remembers."""
BOUNDS: Final = (0.01, 0.99)
"""Of a weight: one of 0 or 1 could never be corrected, and a law of weight 0 has no tokens."""
LENGTHS: Final = (2, 3, 4, 6, 8, 12, 16, 24)

Class = tuple[int, bool]
"""How many of LENGTHS a match reaches, and whether one token alone followed it."""


class _Match(NamedTuple):
    kind: Class
    law: Law


class WithLookup:
    """source: asked for its laws as if nothing were looked up. min_match_length: of a repeated suffix, in tokens."""

    def __init__(self, source: LawSource, min_match_length: int) -> None:
        self.source = source
        self.lookup = SuffixDrafter(min_match_length)
        self.method, self.max_depth = source.method, source.max_depth
        self.costs_passes, self.log_discount = source.costs_passes, source.log_discount
        self._weights: dict[Class, tuple[float, int]] = {}
        # By slot: where each path stands in the text, and the context's own match with q beside it.
        self._places: dict[int, dict[int, Place]] = {}
        self._roots: dict[int, tuple[int, Law, _Match]] = {}

    @property
    def look(self) -> Look | None:
        """The source's."""
        return self.source.look

    @look.setter
    def look(self, look: Look | None) -> None:
        self.source.look = look

    def grown(self, request: DraftRequest, law: Law, scores: NoiseScores, bounds: Bounds) -> Grown | None:
        """In rounds."""
        return None

    def went_down(self, slot: int, depth: int) -> None:
        """The source's."""
        self.source.went_down(slot, depth)

    @property
    def proposes_without_confidence(self) -> bool:
        """The source's."""
        return self.source.proposes_without_confidence

    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The source's laws after the contexts, mixed."""
        return [
            None if law is None else self._at_root(request, law)
            for request, law in zip(requests, self.source.root_laws(requests), strict=True)
        ]

    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """The source's laws after the nodes, mixed."""
        return [
            [
                None if law is None else self._after(tree, node, law)
                for node, law in zip(tree.trunk[-num:], laws, strict=True)
            ]
            for tree, num, laws in zip(trees, num_new, self.source.laws_after(trees, num_new), strict=True)
        ]

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """Forgets the places in the text."""
        self.source.end_of_round(requests)
        self._places = {}

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Both take note, and the match's class learns whether it was right."""
        self.source.observe(slot, context_ids, verdict)
        root = self._roots.pop(slot, None)
        if root is not None and root[0] < len(context_ids):
            self._learn(context_ids[root[0]], root[1], root[2])
        self.lookup.observe(slot, context_ids, verdict)

    def release(self, slot: int) -> None:
        """Both forget the slot."""
        self.source.release(slot)
        self.lookup.release(slot)
        self._roots.pop(slot, None)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """The source's."""
        return self.source.confidence(slot, context_ids)

    def weight(self, kind: Class) -> float:
        """What a match of this class weighs."""
        return self._weights.get(kind, (FIRST_WEIGHT, FIRST_COUNT))[0]

    def _at_root(self, request: DraftRequest, law: Law) -> Law:
        place = self.lookup.contexts.up_to_date(request.slot, request.context_ids).tail
        self._places[request.slot] = {ROOT: place}
        match = self._match(request, place)
        if match is None:
            self._roots.pop(request.slot, None)
            return law
        self._roots[request.slot] = (len(request.context_ids), law, match)
        return mixed(law, match.law, self.weight(match.kind))

    def _after(self, tree: Growing, node: int, law: Law) -> Law:
        places = self._places[tree.request.slot]
        automaton = self.lookup.contexts.up_to_date(tree.request.slot, tree.request.context_ids)
        place = automaton.after(places[int(tree.parents[node])], int(tree.token_ids[node]))
        places[node] = place
        match = self._match(tree.request, place)
        return law if match is None else mixed(law, match.law, self.weight(match.kind))

    def _match(self, request: DraftRequest, place: Place) -> _Match | None:
        automaton = self.lookup.contexts.up_to_date(request.slot, request.context_ids)
        match = self.lookup.match(automaton, place)
        if match is None:
            return None
        followers = automaton.followers(match.state)
        law = law_of_counts({follower.token_id: follower.num_occurrences for follower in followers})
        assert law is not None
        reached = sum(match.length >= length for length in LENGTHS)
        return _Match((reached, len(followers) == 1), law)

    def _learn(self, token_id: int, law: Law, match: _Match) -> None:
        weight, count = self._weights.get(match.kind, (FIRST_WEIGHT, FIRST_COUNT))
        own, other = weight * float(match.law.prob(token_id)), (1.0 - weight) * float(law.prob(token_id))
        if own + other > 0:
            count = min(count + 1, MOST_COUNT)
            weight += (own / (own + other) - weight) / count
            self._weights[match.kind] = (min(max(weight, BOUNDS[0]), BOUNDS[1]), count)


def mixed(law: Law, other: Law, weight: float) -> Law:
    """(1 - weight) law + weight other. other: of few tokens."""
    probs, token_ids = law.weights()
    shares, ids = other.weights()
    assert ids is not None
    probs, shares = probs * np.float32(1.0 - weight), shares * weight
    if token_ids is None:
        token_ids = np.flatnonzero(probs)
        probs = probs[token_ids]
    places = np.searchsorted(token_ids, ids)
    known = token_ids[np.minimum(places, len(token_ids) - 1)] == ids
    probs = probs.astype(np.float32, copy=False)
    probs[places[known]] += shares[known].astype(np.float32)
    if not known.all():
        token_ids = np.insert(token_ids, places[~known], ids[~known])
        probs = np.insert(probs, places[~known], shares[~known])
    return PointMass(int(token_ids[0])) if len(token_ids) == 1 else Sparse(token_ids, probs)
