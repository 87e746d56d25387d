"""`multi_path_block`: of several independent paths follow the best one, and verify it as a block.

Formula: m paths are alive after a prefix, their next tokens independent draws of q. The token of the largest p / q
among them is followed, the highest id on ties; the paths that have it stay alive. Its law, given the prefix and m, is
s(v) = F(v)^m - F(before v)^m, F the cumulative sum of q in the order of (p / q, id). `block`'s rule on the followed
path with s in place of q. p = target.
Inputs: a draft of K paths that part at the context, or a chain; siblings drawn independently, and tokens after equal
prefixes from one and the same law; len(draft) + 1 target rows of [V]. Output: 1 to depth + 1 tokens.
Noise: as `block`, with the followed path's nodes.
Exact because the followed path's tokens are drawn from s, each given those before it, and `block` is exact for any law
that its chain was drawn from; m is a function of the tokens before.
Edge cases: K = 1 is `block`. Paths of different lengths: the shorter ones are dead below their ends. Equal paths are
drawn and scored twice.
Refused: branches below the context, siblings drawn without replacement, two laws after one prefix, drafts that looked
at the target's field, lengths that looked at a dropped token.
Sources: our construction after the abstract of Thomas & Pal, greedy multi-path block verification, 2602.16961, whose
selection rule we have not read; block verification: Sun et al. 2403.10444.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np

from draftproof.core import ROOT, Draft, Law, Noise, PointMass, Siblings, Sparse, Verdict
from draftproof.errors import DraftContractError
from draftproof.verify.base import Guarantee, TargetRows, Verifier
from draftproof.verify.block import BlockOfPath
from draftproof.verify.siblings import children_by_parent


@final
class MultiPathBlock(Verifier):
    """Greedy multi-path block verification. Exact law, chains and sets of paths."""

    name: ClassVar[str] = "multi_path_block"
    guarantee: ClassVar[Guarantee] = "exact-law"
    needs_draft_law: ClassVar[bool] = True
    supports_trees: ClassVar[bool] = True
    siblings: ClassVar[Siblings | None] = Siblings.INDEPENDENT
    supports_branches_below: ClassVar[bool] = False

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        return BlockOfPath(draft, rows, *followed_path(draft, rows)).verdict(noise)

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return BlockOfPath(draft, rows, *followed_path(draft, rows)).num_passing(noise)


def followed_path(draft: Draft, rows: TargetRows) -> tuple[list[int], list[Law]]:
    """The nodes of the followed path, and the laws of its tokens, given those before."""
    children = children_by_parent(draft)
    nodes: list[int] = []
    laws: list[Law] = []
    alive = children.get(ROOT, [])
    while alive:
        law = _one_law(draft, alive)
        node = nodes[-1] if nodes else ROOT
        if len(alive) == 1 or isinstance(law, PointMass) or not rows.is_law_after(node):
            followed, selection = alive[0], law
        else:
            selection, token_id = select(rows.after(node), law, [draft.token_ids[child] for child in alive])
            followed = next(child for child in alive if draft.token_ids[child] == token_id)
        nodes.append(followed)
        laws.append(selection)
        same = [child for child in alive if draft.token_ids[child] == draft.token_ids[followed]]
        alive = [below for child in same for below in children.get(child, ())]
    # Equal paths have equal rows, so that any of their nodes stood for all; the one that goes on is the path.
    return (list(draft.path_to(nodes[-1])) if nodes else []), laws


def select(target_law: Law, draft_law: Law, token_ids: Sequence[int]) -> tuple[Sparse, int]:
    """(law of the followed token, the followed token) among `token_ids`, independent draws of `draft_law`."""
    probs, ids = draft_law.weights()
    support = np.flatnonzero(probs)
    ids = support if ids is None else ids[support]
    probs = probs[support].astype(np.float64) if probs.dtype.kind == "f" else probs[support]
    ratios = target_law.at(ids, len(ids)) / probs
    # Ids ascend, so that a stable sort orders ties by id.
    order = np.argsort(ratios, kind="stable")
    below = np.cumsum(probs[order])
    powers = (below / below[-1]) ** len(token_ids)
    shares = powers.copy()
    shares[1:] -= powers[:-1]
    selection = np.empty_like(shares)
    selection[order] = shares
    rank = np.empty(len(ids), dtype=np.int64)
    rank[order] = np.arange(len(ids))
    followed_id = max(token_ids, key=lambda token_id: rank[np.searchsorted(ids, token_id)])
    return Sparse(ids, selection), followed_id


def _one_law(draft: Draft, alive: Sequence[int]) -> Law:
    law = draft.laws[alive[0]]
    if any(draft.laws[node] is not law for node in alive[1:]):
        raise DraftContractError(
            "two paths with one prefix were drawn from two laws after it; compute the law once for each prefix, or "
            "use 'match'"
        )
    return law
