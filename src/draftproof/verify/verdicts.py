"""The verdict of a tree rule: an accepted path, and the token after it."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import ROOT, Decision, Draft, Outcome, Verdict
from draftproof.verify.base import TargetRows


def verdict_of(draft: Draft, rows: TargetRows, path: Sequence[int], emitted_id: int) -> Verdict:
    """path: the accepted nodes, from the context down. emitted_id: the token after the last of them.

    That token is a bonus if the last accepted node has no children, else it replaces what was tried there.
    """
    decisions = [_decision(draft, rows, node, draft.token_ids[node], Outcome.ACCEPTED) for node in path]
    last = path[-1] if path else ROOT
    tried = next(iter(draft.children_of(last)), None)
    if tried is None:
        position = draft.start + len(path)
        decisions.append(Decision(position, ROOT, None, emitted_id, Outcome.BONUS, None, None))
    else:
        decisions.append(_decision(draft, rows, tried, emitted_id, Outcome.RECOVERED))
    token_ids = (*(draft.token_ids[node] for node in path), emitted_id)
    return Verdict(token_ids, tuple(path), tuple(decisions))


def _decision(draft: Draft, rows: TargetRows, node: int, emitted_id: int, outcome: Outcome) -> Decision:
    drafted_id = draft.token_ids[node]
    target_prob = rows.after(draft.parents[node]).prob(drafted_id)
    return Decision(
        draft.start + draft.depths[node],
        node,
        drafted_id,
        emitted_id,
        outcome,
        target_prob,
        draft.laws[node].prob(drafted_id),
    )
