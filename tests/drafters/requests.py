"""Draft requests for drafters that neither sample nor read parameters."""

from collections.abc import Sequence
from typing import Any

from draftproof.core import Decision, Outcome, Verdict
from draftproof.drafters.base import DraftRequest

UNUSED: Any = None


def request_for(context_ids: Sequence[int], num_tokens: int, slot: int = 0) -> DraftRequest:
    """A request without noise: a drafter that touches it fails."""
    return DraftRequest(slot, context_ids, num_tokens, UNUSED, True, UNUSED, UNUSED)


def verdict_of(token_ids: Sequence[int], start: int = 0) -> Verdict:
    """All but the last token accepted."""
    decisions = tuple(
        Decision(start + index, index, token_id, token_id, Outcome.ACCEPTED, None, None)
        for index, token_id in enumerate(token_ids)
    )
    return Verdict(tuple(token_ids), tuple(range(len(token_ids) - 1)), decisions)
