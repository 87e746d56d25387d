"""The masks of a draft: one for the row after the context, one for the row after each drafted token.

Rule: a node's mask is what its own path allows. A node below a token that the grammar forbids has none: the token has
probability 0 in its parent's row, so the node is never reached and its row is never used.
In: the cursor at the context, a chain or a tree. Out: [1 + len(draft)] masks or None.
Sources: T42 (sgl-project/sglang#9187, #24283, #20148), T43 (vllm-project/vllm#50952), T45.
"""

from __future__ import annotations

from draftproof.core import Draft
from draftproof.errors import LawError
from draftproof.grammar.cursor import GrammarCursor
from draftproof.sampling import Mask
from draftproof.when_asked import StatesAlong, WhenAsked


class DraftMasks(WhenAsked["Mask | None"]):
    """See `masks_of`."""

    def __init__(self, cursor: GrammarCursor, draft: Draft) -> None:
        super().__init__(1 + len(draft))
        self._token_ids = draft.token_ids
        self._points: StatesAlong[GrammarCursor | None] = StatesAlong(cursor, draft.parents, self._after)

    def _make(self, place: int) -> Mask | None:
        point = self._points.at(place)
        return None if point is None else point.mask

    def _after(self, before: GrammarCursor | None, node: int) -> GrammarCursor | None:
        return None if before is None else before.after(self._token_ids[node])


def masks_of(cursor: GrammarCursor, draft: Draft) -> DraftMasks:
    """A mask for each row of the draft, made when it is asked for: row 0 after the context, row i + 1 after node i."""
    return DraftMasks(cursor, draft)


def with_grammar(error: LawError, mask: Mask) -> LawError:
    """The error of a row that a grammar constrained, with what the grammar allowed there."""
    num_allowed = int(mask.sum())
    if num_allowed == 0:
        more = (
            "the grammar allows no token here: the vocabulary can't spell what would have to follow, or its library "
            "met a limit"
        )
    else:
        more = (
            f"the grammar allows {num_allowed} tokens here, and the request's other parameters none of them: look at "
            "min_tokens, allowed_token_ids, bad_words, no_repeat_ngram_size and logit_bias"
        )
    return LawError(f"{error.message}; {more}", request_id=error.request_id, position=error.position)
