"""The drafter that grows trees: a source of laws, a builder, and shares that may look at the target's noise.

Rule: the law after the context; then rounds: the builder names candidates, the source gives the laws after them, the
best children of each become candidates; last the builder chooses the draft, as point masses.
Noise: with a noise_weight above 0 the target's fields at the positions of the tree are read, and the draft says so:
only verifiers whose output can't depend on the draft take it. For requests of other verifiers, and at temperature 0,
nothing is read.
Why exact: the draft is a rule's choice, and its tokens are point masses.
At temperature 0 candidates are ranked by the drafter's law at temperature 1: the request's own is a point mass and
knows no second best.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftproof.core import ROOT, Draft, Law, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree.builder import TreeBuilder
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.scores import NoiseScores
from draftproof.drafters.tree.settings import Shares, at_temperature_one, may_look
from draftproof.drafters.tree.source import LawSource
from draftproof.drafters.tree.survival import Survival
from draftproof.drafters.tree.tuning import FixedShares, SharesPolicy


class TreeDrafter:
    """Trees from `source`, shaped by `builder`; `shares` chooses noise_weight and sharpness for each pass."""

    def __init__(self, source: LawSource, builder: TreeBuilder, shares: SharesPolicy | Shares | None = None) -> None:
        self.source, self.builder = source, builder
        self.shares: SharesPolicy = FixedShares(shares or Shares()) if isinstance(shares, Shares | None) else shares
        self.method = source.method
        self._scores: dict[int, NoiseScores] = {}
        self._survival: dict[Shares, Survival] = {}
        self._verified: dict[int, _Verified] = {}

    @property
    def proposes_without_confidence(self) -> bool:
        """As the source's."""
        return self.source.proposes_without_confidence

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One tree for each request; see `Drafter.propose`."""
        trees = [Growing(at_temperature_one(request)) for request in requests]
        looking = [may_look(request) for request in requests]
        for request, looks in zip(requests, looking, strict=True):
            if request.num_tokens > 0:
                self._prepare(request, looks)
        wanted = [tree for tree in trees if tree.request.num_tokens > 0]
        for tree, law in zip(wanted, self.source.root_laws([tree.request for tree in wanted]), strict=True):
            if law is not None:
                self._add(tree, ROOT, law)
        self._grow([tree for tree in wanted if tree.num_candidates])
        self.source.end_of_round([tree.request for tree in wanted])
        return [self._draft(tree) for tree in trees]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """The source's state and the policy learn from the verdict."""
        self.source.observe(slot, context_ids, verdict)
        self.shares.observe(slot, verdict.num_accepted)
        verified = self._verified.pop(slot, None)
        if verified is not None and len(verified.log_weights):
            # A draft may have begun with tokens that a grammar forced.
            num_before = verified.start - verdict.decisions[0].position
            accepted = np.zeros(len(verified.log_weights), dtype=bool)
            accepted[[node - num_before for node in verdict.path if node >= num_before]] = True
            self._calibration(verified.shares).observe(verified.log_weights, accepted)

    def release(self, slot: int) -> None:
        """Forgets the slot's request."""
        self.source.release(slot)
        self.shares.release(slot)
        self._scores.pop(slot, None)
        self._verified.pop(slot, None)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """As the source's."""
        return self.source.confidence(slot, context_ids)

    def _prepare(self, request: DraftRequest, looks: bool) -> None:
        shares = self.shares.choose(request.slot, request.row_params.temperature, looks=looks)
        noise_weight = shares.noise_weight if looks else 0.0
        known = self._scores.get(request.slot)
        if known is None or known.noise is not request.noise or known.noise_weight != noise_weight:
            known = self._scores[request.slot] = NoiseScores(
                request.noise, noise_weight=noise_weight, num_children=self.builder.num_children
            )
        known.sharpness = shares.sharpness
        known.forget_before(len(request.context_ids))

    def _grow(self, trees: Sequence[Growing]) -> None:
        for round_index in itertools.count():
            asked = [(tree, nodes) for tree in trees if (nodes := self.builder.next_nodes(tree, round_index))]
            if not asked:
                return
            for tree, nodes in asked:
                tree.expand(nodes)
            laws = self.source.laws_after([tree for tree, _ in asked], [len(nodes) for _, nodes in asked])
            for (tree, nodes), found in zip(asked, laws, strict=True):
                for node, law in zip(nodes, found, strict=True):
                    if law is not None:
                        self._add(tree, node, law)

    def _add(self, tree: Growing, parent: int, law: Law) -> None:
        depth = 0 if parent == ROOT else int(tree.depths[parent]) + 1
        token_ids, log_shares = self._scores[tree.request.slot].ranked(law, len(tree.request.context_ids) + depth)
        tree.add(parent, token_ids, log_shares + self.source.log_discount, law)

    def _draft(self, tree: Growing) -> Draft:
        request = tree.request
        start = len(request.context_ids)
        if not tree.num_candidates:
            return Draft.empty(start)
        scores = self._scores[request.slot]
        shares = Shares(scores.noise_weight, scores.sharpness)
        chosen = self.builder.chosen(tree)
        if request.anticipating is not None:
            survival = self._calibration(shares).of(tree.log_weights[chosen])
            chosen = chosen[: request.anticipating.num_worth(survival)]
        self._verified[request.slot] = _Verified(start, shares, tree.log_weights[chosen])
        token_ids, parents = tree.cut(chosen)
        return Draft.of_token_ids(start, token_ids, parents, looked_at_target_field=scores.noise_weight > 0)

    def _calibration(self, shares: Shares) -> Survival:
        return self._survival.setdefault(shares, Survival())


class _Verified(NamedTuple):
    """What became of a slot's last tree. start: its first token's position. log_weights: [n] of its nodes."""

    start: int
    shares: Shares
    log_weights: NDArray[np.float64]
