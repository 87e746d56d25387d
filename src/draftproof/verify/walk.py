"""The walk that `keyed`, `greedy` and `match` share: descend while the target's own token is in the draft.

Rule: at each node reached, draw a token from the target's law; go to the first child with that token, if there is
one; the token is emitted either way. Siblings with the same token: the first counts, the others are never reached,
so a duplicate can't add probability.
Exact because every emitted token is a draw from the target's law after the tokens before it; the draft only decides
how many are drawn in one pass.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core import ROOT, Decision, Draft, Law, Outcome, Verdict
from draftproof.verify.base import TargetRows

DrawToken = Callable[[Law, int], int]
"""(the target's law after a node, that node) -> token id. Node ROOT is the context."""


def walk(draft: Draft, rows: TargetRows, draw_token: DrawToken) -> Verdict:
    """Walks `draft` from the root and returns the verdict."""
    token_ids: list[int] = []
    path: list[int] = []
    decisions: list[Decision] = []
    node = ROOT
    while True:
        law = rows.after(node)
        token_id = draw_token(law, node)
        children = draft.children_of(node)
        child = next((child for child in children if draft.token_ids[child] == token_id), None)
        tried = child if child is not None else children[0] if children else ROOT
        decisions.append(_decision(draft, len(token_ids), tried, token_id, law))
        token_ids.append(token_id)
        if child is None:
            return Verdict(tuple(token_ids), tuple(path), tuple(decisions))
        path.append(child)
        node = child


def num_nodes_agreeing(draft: Draft, rows: TargetRows, draw_token: DrawToken) -> int:
    """How many nodes hold the token that the target draws after their parent, reached by the walk or not."""
    drawn = {
        parent: draw_token(rows.after(parent), parent)
        for parent in sorted(set(draft.parents))
        if rows.is_law_after(parent)
    }
    return sum(
        parent in drawn and drawn[parent] == token_id
        for token_id, parent in zip(draft.token_ids, draft.parents, strict=True)
    )


def _decision(draft: Draft, depth: int, tried: int, emitted_id: int, law: Law) -> Decision:
    position = draft.start + depth
    if tried == ROOT:
        return Decision(position, ROOT, None, emitted_id, Outcome.BONUS, None, None)
    drafted_id = draft.token_ids[tried]
    outcome = Outcome.ACCEPTED if drafted_id == emitted_id else Outcome.RECOVERED
    return Decision(
        position, tried, drafted_id, emitted_id, outcome, law.prob(drafted_id), draft.laws[tried].prob(drafted_id)
    )
