"""`traversal`: block verification on a tree, from the leaves up: a node is accepted after all below it has failed.

Formula: a(context) = 1. For a child x of node n with law q_k: a(x) = min(1, a(n) * p_n(x) / q_k(x)); its subtree is
tried first. If the child fails, R = max(a(n) * p_n - q_k, 0) with the sum S; p_n becomes R / S and a(n) becomes
S / (S + 1 - a(n)); then the next child is tried, against these. When a node's children have failed, it is accepted iff
u < a(n); the token after it is drawn from p_n. The context is always accepted. p = target.
Inputs: a draft (chain or tree) whose siblings were drawn without replacement, or are ranked point masses; len(draft) +
1 target rows of [V]. Output: 1 to depth + 1 tokens.
Noise, fresh in every pass, in order: Key(COIN, start, node) for each node whose children have failed, as long as none
was accepted; then Key(RESIDUAL, start, node + 1), or Key(BONUS, start, 0) after a leaf.
Exact because a(n) times the probability of n's path is the mass of that path that is still to be emitted when n is
tried, and R is what a failed child leaves of it (2403.10444's argument at each node).
Edge cases: on a chain this is `block`. A node with a = 0 is never accepted, and rows below it are never read. A row
that is no law makes its node a leaf; its LawError is raised if the node is accepted.
Refused: siblings drawn independently, drafts that looked at the target's field, lengths that looked at a dropped token.
Source: Weng et al., Traversal Verification, 2505.12398, algorithm 1. Deviation: each child's own law in place of one
law that is renormalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, final

from draftproof.core import ROOT, Draft, Key, Noise, Number, Purpose, Siblings, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier, drawn_prob
from draftproof.verify.remaining import Remaining
from draftproof.verify.siblings import children_by_parent
from draftproof.verify.top_down import coin_key, residual_key
from draftproof.verify.verdicts import verdict_of


class Tried(NamedTuple):
    """A node whose children have failed. mass: the probability that it is accepted now."""

    node: int
    mass: Number
    remaining: Remaining | None


@final
class Traversal(Verifier):
    """Traversal verification. Exact law, chains and trees."""

    name: ClassVar[str] = "traversal"
    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = True
    supports_trees: ClassVar[bool] = True
    siblings: ClassVar[Siblings | None] = Siblings.WITHOUT_REPLACEMENT

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        def accepts(tried: Tried) -> bool:
            return tried.node == ROOT or noise.coin(coin_key(draft, tried.node), tried.mass)

        node, _, remaining = _Walk(draft, rows, accepts).accepted()
        path = draft.path_to(node)
        if remaining is None:
            return verdict_of(draft, rows, path, rows.after(node).draw(noise, Key(Purpose.BONUS, draft.start)))
        return verdict_of(draft, rows, path, remaining.draw(noise, residual_key(draft, node)))

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        num_agreeing = 0

        def counts(tried: Tried) -> bool:
            nonlocal num_agreeing
            if tried.node != ROOT:
                num_agreeing += noise.coin(coin_key(draft, tried.node), tried.mass)
            return False

        if rows.is_law_after(ROOT):
            _Walk(draft, rows, counts).run()
        return num_agreeing


class _Walk:
    """One pass over the tree, children before parents. accepts: asked once for each node, in that order."""

    def __init__(self, draft: Draft, rows: TargetRows, accepts: Callable[[Tried], bool]) -> None:
        self._draft, self._rows, self._accepts = draft, rows, accepts
        self._children = children_by_parent(draft)

    def accepted(self) -> Tried:
        """The first node that is accepted: the context if no other."""
        found = self.run()
        return Tried(ROOT, 1, None) if found is None else found

    def run(self) -> Tried | None:
        """The first accepted node, None if `accepts` has refused them all."""
        return self._visit(ROOT, 1)

    def _visit(self, node: int, mass: Number) -> Tried | None:
        nodes: Sequence[int] = self._children.get(node, ())
        if mass == 0:
            return None
        if not nodes or (node != ROOT and not self._rows.is_law_after(node)):
            return self._try(Tried(node, mass, None))
        remaining = Remaining(self._rows.after(node))
        for child in nodes:
            token_id, draft_prob = self._draft.token_ids[child], drawn_prob(self._draft, child)
            child_mass = mass * remaining.prob(token_id)
            # Branches, as in `block`: two integers must not become a float.
            child_mass = 1 if child_mass >= draft_prob else 0 if child_mass == 0 else child_mass / draft_prob
            found = self._visit(child, child_mass)
            if found is not None:
                return found
            left = remaining.subtract(self._draft.laws[child], mass)
            if left == 0 and mass == 1:
                # The child's law covers the row: in exact arithmetic its a was 1, and something at or below it passed.
                continue
            mass = left / (left + 1 - mass)
            if mass == 0:
                return None
        return self._try(Tried(node, mass, remaining))

    def _try(self, tried: Tried) -> Tried | None:
        return tried if self._accepts(tried) else None
