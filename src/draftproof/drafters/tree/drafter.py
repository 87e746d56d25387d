"""The drafter that grows trees: a source of laws, a builder, and shares that may look at the target's noise.

Rule: the law after the context; then rounds: the builder names candidates, the source gives the laws after them, the
best children of each become candidates; last the builder chooses the draft, as point masses.
A request whose policy is `Anticipating` is asked before each round how many of the named candidates are worth
expanding, by what the children that such nodes have had would add to this tree's value; and at the end how many nodes
are worth verifying. So a tree becomes a chain where width costs more than it brings.
Noise: with a noise_weight above 0 the target's fields at the positions of the tree are read, and the draft says so:
only verifiers whose output can't depend on the draft take it. For requests of other verifiers, and at temperature 0,
nothing is read.
Why exact: the draft is a rule's choice, and its tokens are point masses.
At temperature 0 candidates are ranked by the drafter's law at temperature 1: the request's own is a point mass and
knows no second best.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from draftproof.core import ROOT, Draft, Law, Verdict
from draftproof.drafters.anticipating import Anticipating
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree.best_first import BestFirst
from draftproof.drafters.tree.builder import TreeBuilder
from draftproof.drafters.tree.discounts import MOST_DEPTHS, NONE, Discounts
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.scores import NoiseScores, Ranked, log_shares_of
from draftproof.drafters.tree.settings import Shares, at_temperature_one, may_look
from draftproof.drafters.tree.source import Bounds, LawSource
from draftproof.drafters.tree.survival import NUM_CHILDREN, Offspring, Survival
from draftproof.drafters.tree.tuning import FixedShares, SharesPolicy
from draftproof.drafters.tree.worth import Worth

COUNTS: Final = (1, 2, 4, 8, 16)
"""Of how many more nodes it is asked what they would bring; what lies between two of these is on a line."""


NUM_FIRST: Final = 64
EVERY: Final = 4
"""After NUM_FIRST verified drafts with the same shares, one in EVERY is learned from."""
LEAST_WORTH: Final = -5.0
"""Log weight; of drafts that are cut to what is worth it, what is less likely isn't grown."""


class TreeDrafter:
    """Trees from `source`, shaped by `builder`; `shares` chooses noise_weight and sharpness for each pass."""

    grows_trees = True

    def __init__(
        self,
        source: LawSource,
        builder: TreeBuilder,
        shares: SharesPolicy | Shares | None = None,
        *,
        learns_discounts: bool = False,
    ) -> None:
        """learns_discounts: what a tree looks like may depend on earlier verdicts."""
        self.source, self.builder = source, builder
        self.shares: SharesPolicy = FixedShares(shares or Shares()) if isinstance(shares, Shares | None) else shares
        self.method = source.method
        source.look = self._powers
        self._scores: dict[int, NoiseScores] = {}
        self._learns_discounts = learns_discounts
        self._discounts: defaultdict[Shares, Discounts] = defaultdict(Discounts)
        self._survival: defaultdict[Shares, Survival] = defaultdict(Survival)
        self._offspring: defaultdict[Shares, Offspring] = defaultdict(Offspring)
        self._drafted: dict[int, _Drafted] = {}
        self._num_drafts: defaultdict[Shares, int] = defaultdict(int)
        self._worth: defaultdict[int, Worth] = defaultdict(Worth)
        self._limits: dict[int, _Limits] = {}

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
            if law is None or not self._grown(tree, law):
                self._add(tree, [ROOT], [law])
        self._grow([tree for tree in wanted if tree.num_candidates and not tree.is_done])
        self.source.end_of_round([tree.request for tree in wanted])
        return [self._draft(tree) for tree in trees]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """The source's state and the policy learn from the verdict."""
        self.source.observe(slot, context_ids, verdict)
        drafted = self._drafted.pop(slot, None)
        if drafted is None:
            return
        # A draft may have begun with tokens that a grammar forced.
        num_before = drafted.start - verdict.decisions[0].position
        arms = self.shares.arms(slot)
        if arms and len(verdict.token_ids) > num_before:
            noise, emitted_id = self._scores[slot].noise, verdict.token_ids[num_before]
            self.shares.observe(slot, log_shares_of(emitted_id, drafted.law, noise, drafted.start, arms))
        self._num_drafts[drafted.shares] += 1
        num_drafts = self._num_drafts[drafted.shares]
        if num_drafts <= NUM_FIRST or num_drafts % EVERY == 0:
            self._learn(drafted, [node - num_before for node in verdict.path if node >= num_before])

    def _learn(self, drafted: _Drafted, path: Sequence[int]) -> None:
        """How far weights are right. path: the draft's accepted nodes."""
        accepted = np.zeros(len(drafted.log_weights), dtype=bool)
        accepted[path] = True
        self._calibration(drafted.shares).observe(drafted.log_weights, accepted)
        if self._learns_discounts:
            log_weights, depths = drafted.log_weights.tolist(), drafted.depths.tolist()
            self._discounts[drafted.shares].observe(log_weights, depths, drafted.parents, path, drafted.discounts)

    def release(self, slot: int) -> None:
        """Forgets the slot's request."""
        self.source.release(slot)
        self.shares.release(slot)
        self._scores.pop(slot, None)
        self._drafted.pop(slot, None)
        self._worth.pop(slot, None)
        self._limits.pop(slot, None)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """As the source's."""
        return self.source.confidence(slot, context_ids)

    def _prepare(self, request: DraftRequest, looks: bool) -> None:
        shares = self.shares.choose(request.slot, request.row_params.temperature, looks=looks)
        noise_weight = shares.noise_weight if looks else 0.0
        num_children = self.builder.num_children
        known = self._scores.get(request.slot)
        if known is None or known.noise is not request.noise or known.noise_weight != noise_weight:
            known = self._scores[request.slot] = NoiseScores(
                request.noise, noise_weight=noise_weight, num_children=num_children
            )
        known.sharpness, known.num_children = shares.sharpness, num_children
        known.forget_before(len(request.context_ids))

    def _powers(self, slot: int, position: int, token_ids: NDArray[np.int64]) -> NDArray[np.float32] | None:
        scores = self._scores[slot]
        return scores.powers_at(position, token_ids) if scores.noise_weight else None

    def _grown(self, tree: Growing, law: Law) -> bool:
        """The best tree at once, where the source can and the builder wants it: to be cut as it is."""
        builder, anticipating = self.builder, tree.request.anticipating
        if not isinstance(builder, BestFirst) or builder.max_rounds is not None:
            return False
        if anticipating is not None and anticipating.is_probe:
            return False
        request = tree.request
        least = np.full(request.num_tokens, builder.min_log_weight)
        if anticipating is not None:
            least = np.maximum(self._least_worth(request.slot, anticipating, request.num_tokens), least)
        bounds = Bounds(request.deepest(builder.max_depth), least, self._discounts_of(tree))
        found = self.source.grown(request, law, self._scores[request.slot], bounds)
        if found is None:
            return False
        tree.take(law, *found)
        return True

    def _least_worth(self, slot: int, anticipating: Anticipating, num: int) -> NDArray[np.float64]:
        """[num] log weights below which nodes are cut off whatever else is in the tree."""
        survivals, shares = anticipating.least_survivals(num), self._scores[slot].shares
        known = self._limits.get(slot)
        if known is None or known.survivals is not survivals or known.shares is not shares:
            weights = np.maximum(self._calibration(shares).least_weights(survivals), LEAST_WORTH)
            known = self._limits[slot] = _Limits(survivals, shares, weights)
        return known.log_weights

    def _grow(self, trees: Sequence[Growing]) -> None:
        for round_index in itertools.count():
            asked = [(tree, nodes) for tree in trees if (nodes := self._next_nodes(tree, round_index))]
            if not asked:
                return
            began = perf_counter()
            for tree, nodes in asked:
                tree.expand(nodes)
            laws = self.source.laws_after([tree for tree, _ in asked], [len(nodes) for _, nodes in asked])
            for (tree, nodes), found in zip(asked, laws, strict=True):
                self._add(tree, nodes, found)
            seconds = (perf_counter() - began) / len(asked)
            for tree, nodes in asked:
                self._settle_round(tree, nodes, seconds)

    def _next_nodes(self, tree: Growing, round_index: int) -> list[int]:
        """What the builder would expand, as far as that pays, which is asked where earlier answers don't tell."""
        anticipating = tree.request.anticipating
        nodes = [] if tree.is_done else self.builder.next_nodes(tree, round_index)
        if nodes and anticipating is not None and anticipating.is_probe:
            nodes = []
        if nodes and anticipating is not None:
            nodes.sort(key=tree.log_weights.__getitem__, reverse=True)
            survival, worth = self._survivals(tree, tree.log_weights[nodes]), self._worth[tree.request.slot]
            if round_index == 0:
                worth.fade()
            num_worth = worth.known(survival)
            if num_worth is None:
                num_worth = anticipating.num_expanded(self._gains(tree, anticipating, nodes, survival))
                worth.learn(survival, num_worth)
            nodes = nodes[:num_worth]
            tree.is_done = not nodes
        return nodes

    def _gains(
        self, tree: Growing, anticipating: Anticipating, nodes: Sequence[int], survival: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """[n] what expanding each of the nodes after those before it adds to the tree's value, if it has the children
        that such nodes have had. survival: [n], falling.
        """
        budget, offspring = tree.request.num_tokens, self._offspring_of(tree)
        kept = self._survivals(tree, tree.heaviest(budget))
        children = survival[:, None] * offspring.of(tree.depths[nodes], survival)
        # Of each row so many of the first nodes have their children. Negated, so that the largest are sorted first.
        counts = [count for count in COUNTS if count < len(nodes)] + [len(nodes)]
        trees = np.zeros((1 + len(counts), len(kept) + children.size))
        np.negative(kept, out=kept)
        np.negative(children, out=children)
        trees[:, : len(kept)] = kept
        for row, count in enumerate(counts, start=1):
            trees[row, len(kept) : len(kept) + NUM_CHILDREN * count] = children[:count].ravel()
        trees.sort(axis=1)
        values = anticipating.values(-trees[:, :budget]).tolist()
        gains, done = np.empty(len(nodes)), 0
        for count, before, value in zip(counts, values, values[1:], strict=False):
            gains[done:count] = (value - before) / (count - done)
            done = count
        return gains

    def _settle_round(self, tree: Growing, nodes: Sequence[int], seconds: float) -> None:
        anticipating = tree.request.anticipating
        if anticipating is None:
            return
        anticipating.observe_round(len(nodes), seconds)
        survival, offspring = self._survivals(tree, tree.log_weights), self._offspring_of(tree)
        for node in nodes:
            offspring.observe(int(tree.depths[node]), float(survival[node]), survival[tree.children_of(node)])

    def _add(self, tree: Growing, nodes: Sequence[int], laws: Sequence[Law | None]) -> None:
        """The best children after each of the nodes that has a law."""
        scores, start = self._scores[tree.request.slot], len(tree.request.context_ids)
        discounts = self._discounts_of(tree)
        at_depth: defaultdict[int, list[int]] = defaultdict(list)
        for place, (node, law) in enumerate(zip(nodes, laws, strict=True)):
            if law is not None:
                at_depth[0 if node == ROOT else int(tree.depths[node]) + 1].append(place)
        found: dict[int, Ranked] = {}
        for depth, places in at_depth.items():
            ranked = scores.ranked_together([cast(Law, laws[place]) for place in places], start + depth)
            found |= zip(places, ranked, strict=True)
        for place, (token_ids, log_shares) in sorted(found.items()):
            depth = 0 if nodes[place] == ROOT else int(tree.depths[nodes[place]]) + 1
            discount = self.source.log_discount + discounts[min(depth, MOST_DEPTHS - 1)]
            tree.add(nodes[place], token_ids, log_shares + discount, cast(Law, laws[place]))

    def _draft(self, tree: Growing) -> Draft:
        request = tree.request
        start = len(request.context_ids)
        if not tree.num_candidates:
            return Draft.empty(start)
        looked = self._scores[request.slot].noise_weight > 0
        chosen = self.builder.chosen(tree)
        if request.anticipating is not None:
            if request.num_branches is not None and len(chosen):
                # The context's newest token is the root of all.
                most = request.num_branches(2 + int(tree.depths[chosen].max()))
                chosen = chosen if most is None else tree.with_branches(chosen, most)
            survival = self._survivals(tree, tree.log_weights[chosen])
            chosen = chosen[: request.anticipating.num_worth(survival)]
        if tree.is_whole and len(chosen):
            # Laws of one depth more were of use, to know that it isn't worth it.
            self.source.went_down(request.slot, 2 + int(tree.depths[chosen].max()))
        token_ids, parents = tree.cut(chosen)
        self._drafted[request.slot] = _Drafted(
            start,
            self._shares_of(tree),
            tree.law_after(ROOT),
            tree.log_weights[chosen],
            tree.depths[chosen],
            parents,
            self._discounts_of(tree),
        )
        return Draft.of_token_ids(start, token_ids, parents, looked_at_target_field=looked)

    def _shares_of(self, tree: Growing) -> Shares:
        return self._scores[tree.request.slot].shares

    def _discounts_of(self, tree: Growing) -> NDArray[np.float64]:
        return self._discounts[self._shares_of(tree)].logs if self._learns_discounts else NONE

    def _survivals(self, tree: Growing, log_weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._calibration(self._shares_of(tree)).of(log_weights)

    def _calibration(self, shares: Shares) -> Survival:
        return self._survival[shares]

    def _offspring_of(self, tree: Growing) -> Offspring:
        return self._offspring[self._shares_of(tree)]


class _Limits(NamedTuple):
    """log_weights [n], of the survivals [n] by the shares' calibration as it was when these were asked for."""

    survivals: NDArray[np.float64]
    shares: Shares
    log_weights: NDArray[np.float64]


class _Drafted(NamedTuple):
    """A slot's last draft. start: its first token's position. law: after the context. log_weights, depths, parents: [n]
    of its nodes. discounts: that the weights were made with."""

    start: int
    shares: Shares
    law: Law
    log_weights: NDArray[np.float64]
    depths: NDArray[np.int64]
    parents: list[int]
    discounts: NDArray[np.float64]
