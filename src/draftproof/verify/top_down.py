"""Tree rules that decide one position after the other, from the context down: at each node a child, or a token.

Rule: at the node reached, the rule of the verifier's own file chooses a child, whose token is emitted and which is
walked to, or a token of none of the children, which is emitted last. Where a node has no children, the bonus token is
drawn from the target's row.
Exact because each file's rule emits a token of the target's law at its position, given the tokens before it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from draftproof.core import ROOT, Draft, Key, Noise, Purpose, Verdict
from draftproof.verify.base import Guarantee, TargetRows, Verifier
from draftproof.verify.siblings import children_by_parent
from draftproof.verify.verdicts import verdict_of


class Choice(NamedTuple):
    """What a rule emits after a node. child: the accepted one, None if the token is none of theirs."""

    token_id: int
    child: int | None


class TopDown(Verifier):
    """A ratio test over siblings, position by position. Exact law, chains and trees."""

    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = True
    supports_trees: ClassVar[bool] = True

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        children = children_by_parent(draft)
        path: list[int] = []
        node = ROOT
        while nodes := children.get(node):
            choice = self._choose(draft, rows, noise, node, nodes)
            if choice.child is None:
                return verdict_of(draft, rows, path, choice.token_id)
            path.append(choice.child)
            node = choice.child
        return verdict_of(draft, rows, path, rows.after(node).draw(noise, Key(Purpose.BONUS, draft.start)))

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return sum(
            rows.is_law_after(node) and self._choose(draft, rows, noise, node, nodes).child is not None
            for node, nodes in children_by_parent(draft).items()
        )

    @abstractmethod
    def _choose(self, draft: Draft, rows: TargetRows, noise: Noise, node: int, nodes: Sequence[int]) -> Choice:
        """What follows `node`, whose children are `nodes`, in the order in which they were drawn."""


def residual_key(draft: Draft, node: int) -> Key:
    """The field of the token that replaces the children of `node`."""
    return Key(Purpose.RESIDUAL, draft.start, node + 1)


def coin_key(draft: Draft, node: int) -> Key:
    """The coin that `node` is tested with."""
    return Key(Purpose.COIN, draft.start, node)
