"""Mutants of `traversal`: what is left of a node after a child has failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from draftproof.core import ROOT, Draft, Key, Law, Noise, Number, Purpose, Siblings
from draftproof.verify.exact import target_rows
from draftproof.verify.mutants.base import Mutant, enumerated, production
from draftproof.verify.mutants.sequences import DRAFT, TARGET, before_siblings, unchecked
from draftproof.verify.proposals import Proposer, SampledTree
from draftproof.verify.tables import Context, Table


@dataclass(frozen=True, slots=True)
class TraversalTwin:
    """Traversal verification with parts open to replacement.

    updates_mass: after a failed child the node's mass falls to S / (S + 1 - a). scales: the residual is
    (a p - q)+, otherwise the token rule's (p - q)+. caps: a child's mass is at most 1. leaves_first: a node is tried
    after its children; otherwise before them, and what is below a failed node is dropped.
    """

    target: Table
    drafter: Proposer
    updates_mass: bool = True
    scales: bool = True
    caps: bool = True

    def __call__(self, context: Context, noise: Noise) -> tuple[int, ...]:
        draft = self.drafter(context, noise)
        laws = target_rows(self.target, context, draft)
        found = self._visit(draft, laws, noise, ROOT, 1)
        return (0,) if found is None else found

    def _visit(self, draft: Draft, laws: list[Law], noise: Noise, node: int, mass: Number) -> tuple[int, ...] | None:
        probs = laws[node + 1].at(None, self.target.vocab_size)
        children = draft.children_of(node)
        for child in children:
            token_id = draft.token_ids[child]
            child_mass = mass * probs[token_id] / draft.laws[child].prob(token_id)
            found = self._visit(draft, laws, noise, child, min(1, child_mass) if self.caps else child_mass)
            if found is not None:
                return (token_id, *found)
            left = np.maximum((mass if self.scales else 1) * probs - draft.laws[child].at(None, len(probs)), 0)
            total = left.sum()
            if total > 0:
                probs = left / total
            if self.updates_mass and total + 1 - mass > 0:
                mass = total / (total + 1 - mass)
        if node != ROOT and not noise.coin(Key(Purpose.COIN, draft.start, node), mass):
            return None
        key = Key(Purpose.RESIDUAL, draft.start, node + 1) if children else Key(Purpose.BONUS, draft.start)
        return (noise.choice(key, probs),)


_TREE: Final = SampledTree(DRAFT, (2, 1), Siblings.WITHOUT_REPLACEMENT)


def _twin(name: str, after: str, shape: tuple[int, ...], **wrong: bool) -> Mutant:
    drafter = SampledTree(DRAFT, shape, Siblings.WITHOUT_REPLACEMENT)
    return Mutant(
        name,
        after,
        enumerated(TraversalTwin(TARGET, drafter, **wrong), TARGET),
        production("traversal", TARGET, drafter),
    )


MUTANTS: Final = (
    _twin(
        "node's mass kept after a failed child",
        "design rule, no public report: 2505.12398, the acceptance rate is updated",
        (1, 1),
        updates_mass=False,
    ),
    _twin(
        "subtree's residual is the token rule's",
        "vllm-project/vllm-ascend#7807, on a tree",
        (2, 1),
        scales=False,
    ),
    _twin("subtree accepted by the uncapped product", "HSD's public code (2601.05724), on a tree", (2, 1), caps=False),
    Mutant(
        "second subtree's law is the first one's, traversal",
        "T20b: hipfire PR 483, an approximate rule for draws without replacement",
        enumerated(unchecked("traversal", TARGET, _TREE, before_siblings), TARGET),
        production("traversal", TARGET, _TREE),
    ),
)
