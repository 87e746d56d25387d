"""Grammars that begin after a marker: what comes before it is free, the marker's end is a token's end.

Rule: the output is free text, the marker, a text of the grammar. Before the marker's end every token is allowed but
those that would run past it: the grammar begins at the next token, so that what follows the marker is the grammar's.
A marker is a text, met in the tokens' bytes however they are cut, or a sequence of token ids.
State: how much of the marker the output so far ends with; a function of the committed tokens alone, like the grammar's.
Edge cases: a marker that overlaps itself ("aab" in "aaab") is found, as by a text search. The output may end before it.
Source: T44 (vllm-project/vllm#44006, #44297, #51870, #53777): reasoning that ends inside a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.errors import GrammarError
from draftproof.grammar.vocabulary import Vocabulary
from draftproof.sampling import Mask


class Marker:
    """What begins the grammar. Its states are 0..length - 1, how much of it has been met; None once it is complete."""

    def __init__(self, given: str | Sequence[int], vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._masks: dict[int, Mask | None] = {}
        if isinstance(given, str):
            self._text: bytes | None = given.encode()
            self._ids: tuple[int, ...] = ()
            return
        self._text, self._ids = None, tuple(given)
        outside = [token_id for token_id in self._ids if not 0 <= token_id < vocabulary.size]
        if outside:
            raise GrammarError(f"start_after has token id {outside[0]}; ids run from 0 to {vocabulary.size - 1}")

    def after(self, state: int, token_id: int) -> int | None:
        """The state after a token; None if it completes the marker."""
        if self._text is None:
            return _longest_border((*self._ids[:state], token_id), self._ids)
        seen = self._text[:state] + self._vocabulary.text_of(token_id)
        if seen.find(self._text) >= 0:
            return None
        return _longest_border(seen, self._text)

    def mask(self, state: int) -> Mask | None:
        """[V] True but for the tokens that would run past the marker's end; None if there is none of them."""
        if self._text is None:
            return None
        if state not in self._masks:
            self._masks[state] = self._mask(self._text, state)
        return self._masks[state]

    def _mask(self, text: bytes, state: int) -> Mask | None:
        allowed = np.ones(self._vocabulary.size, dtype=np.bool_)
        for token_id, own in enumerate(self._vocabulary.token_bytes):
            found = (text[:state] + own).find(text)
            allowed[token_id] = found < 0 or found + len(text) == state + len(own)
        allowed.flags.writeable = False
        return None if allowed.all() else allowed


def _longest_border(seen: Sequence[int], marker: Sequence[int]) -> int | None:
    """How much of `marker` `seen` ends with; None for all of it."""
    for length in range(min(len(seen), len(marker)), 0, -1):
        if seen[len(seen) - length :] == marker[:length]:
            return None if length == len(marker) else length
    return 0
