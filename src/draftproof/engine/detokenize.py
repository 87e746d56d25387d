"""Text from token ids, as they come, without ever splitting a character.

A byte-level token can end in the middle of a character, and some tokenizers write a token
differently at the start of a text. So the text of a new token is the difference between the
decoding of a short window with it and without it, and is held back while it ends in U+FFFD.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_WINDOW = 6
_REPLACEMENT = "�"


class Decodes(Protocol):
    """What is asked of a tokenizer here; transformers' tokenizers have it."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class IncrementalDetokenizer:
    """Turns a request's output tokens into text, one token at a time.

    tokenizer: transformers' interface. prompt_ids: the last few give the first token its context.
    """

    __slots__ = ("_ids", "_prefix", "_read", "_skip_special", "_tokenizer")

    def __init__(self, tokenizer: Decodes, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._ids = list(prompt_ids[-_WINDOW:])
        self._prefix, self._read = 0, len(self._ids)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is incomplete."""
        self._ids.append(token_id)
        return self._take(final=False)

    def flush(self) -> str:
        """What is still held back, incomplete characters as U+FFFD."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        if len(after) <= len(before) or (after.endswith(_REPLACEMENT) and not final):
            return ""
        # The text before may itself have ended within a character; only what is settled is kept.
        new = after[len(before) :] if after.startswith(before) else after[_common(before, after) :]
        self._prefix, self._read = self._read, len(self._ids)
        if self._prefix > 4 * _WINDOW:
            drop = self._prefix - _WINDOW
            del self._ids[:drop]
            self._prefix, self._read = self._prefix - drop, self._read - drop
        return new

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special)


def _common(first: str, second: str) -> int:
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
