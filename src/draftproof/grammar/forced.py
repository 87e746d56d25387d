"""Tokens that a grammar leaves little or no choice for, and that are therefore worth drafting before any other.

Rule: while one token alone is allowed, that token. Where every allowed token is the beginning of the longest one, the
longest: the text is forced, and only its spelling is open. Anything else ends the run.
In: the cursor at the context. Out: at most `most` token ids.
Why exact: they are drafted as point masses and verified like all others. Where one token is allowed the target's law is
the point mass on it, so it is accepted under every verifier; a spelling is a guess that the target decides on. The run
is a function of the committed text alone, so its length is chosen without a look at any noise.
Edge cases: where the text may end, nothing is forced but the end itself, if nothing else is allowed.
Source: jump-forward decoding (Zheng et al. 2312.07104, section 4) in tokens, with the model's verification kept.
"""

from __future__ import annotations

import numpy as np

from draftproof.grammar.cursor import GrammarCursor, Phase

_MOST_SPELLINGS = 24
"""More allowed tokens than this are not one text's beginnings: few tokens are that long."""


def forced_ids(cursor: GrammarCursor, most: int) -> tuple[int, ...]:
    """At most `most` tokens that follow, forced or the longest spelling of forced text."""
    found: list[int] = []
    point: GrammarCursor | None = cursor
    while point is not None and len(found) < most and point.phase is Phase.INSIDE:
        token_id = forced_id(point)
        if token_id is None:
            break
        found.append(token_id)
        point = point.after(token_id)
    return tuple(found)


def forced_id(cursor: GrammarCursor) -> int | None:
    """The one token that may follow, or the longest of those that spell one text; None if there is a choice of text."""
    mask = cursor.mask
    if mask is None:
        return None
    num_allowed = int(np.count_nonzero(mask))
    if not 0 < num_allowed <= _MOST_SPELLINGS:
        return None
    allowed = [int(token_id) for token_id in np.flatnonzero(mask)]
    if num_allowed == 1:
        return allowed[0]
    texts = [cursor.vocabulary.token_bytes[token_id] for token_id in allowed]
    longest = max(texts, key=len)
    # An ending token has no text, and its text would begin any other: where the end is allowed there is a choice.
    if not all(text and longest.startswith(text) for text in texts):
        return None
    return allowed[texts.index(longest)]
