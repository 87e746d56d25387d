"""Tokens that a grammar leaves no choice for, or a choice of spelling only: worth drafting before any other.

Rule: while one token alone is allowed, that token. Where several are but all of them spell one text that the grammar
forces, the longest. Anything else ends the run.
In: the cursor at the context. Out: at most `most` token ids.
Why exact: they are drafted as point masses and verified like all others. Where one token is allowed the target's law is
the point mass on it, so it is accepted under every verifier; a spelling is a guess that the target decides on. The run
is a function of the committed text alone, so its length is chosen without a look at any noise.
How: forced text is found by stepping along the shortest allowed tokens while all others begin with each of them.
Edge cases: where the text may end there is a choice; where it must, the end is forced. A rule that never ends forces
no more than `most` tokens, and no more than MOST_BYTES for each are looked at.
Source: jump-forward decoding (Zheng et al. 2312.07104, section 4) in tokens, with the model's verification kept.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from draftproof.grammar.cursor import GrammarCursor, Phase

_MOST_SPELLINGS: Final = 24
"""More allowed tokens than this are not one text's beginnings: few tokens are that long."""
MOST_BYTES: Final = 16


def forced_ids(cursor: GrammarCursor, most: int) -> tuple[int, ...]:
    """At most `most` tokens that follow, forced or the longest spelling of forced text."""
    found: list[int] = []
    point: GrammarCursor | None = cursor
    ahead = b""
    while point is not None and len(found) < most and point.phase is Phase.INSIDE:
        allowed = _few_allowed(point)
        if len(allowed) == 1:
            token_id = allowed[0]
        else:
            ahead = ahead or _forced_text(point, MOST_BYTES * (most - len(found)))
            spelling = [i for i in allowed if _text(point, i) and ahead.startswith(_text(point, i))]
            if not spelling:
                break
            token_id = max(spelling, key=lambda i: len(_text(cursor, i)))
        found.append(token_id)
        ahead = ahead[len(_text(point, token_id)) :]
        point = point.after(token_id)
    return tuple(found)


def _forced_text(cursor: GrammarCursor, most_bytes: int) -> bytes:
    """The text that has to follow, as far as the allowed tokens show it; at most about `most_bytes`."""
    text = b""
    point: GrammarCursor | None = cursor
    while point is not None and point.phase is Phase.INSIDE and len(text) < most_bytes:
        allowed = _few_allowed(point)
        if not allowed:
            break
        shortest = min(allowed, key=lambda i: len(_text(cursor, i)))
        own = _text(point, shortest)
        # An end has no text, and nothing that it would be the beginning of is forced.
        if not own or not all(_text(point, token_id).startswith(own) for token_id in allowed):
            break
        text += own
        point = point.after(shortest)
    return text


def _few_allowed(cursor: GrammarCursor) -> list[int]:
    """The allowed tokens, if there are few; none otherwise."""
    mask = cursor.mask
    if mask is None or np.count_nonzero(mask) > _MOST_SPELLINGS:
        return []
    return [int(token_id) for token_id in np.flatnonzero(mask)]


def _text(cursor: GrammarCursor, token_id: int) -> bytes:
    return cursor.vocabulary.token_bytes[token_id]
