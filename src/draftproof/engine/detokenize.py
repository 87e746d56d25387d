"""Text from token ids, as they come, without ever splitting a character.

Rule: the text of new tokens is what they add to the decoding of a few tokens before them (the anchor), since some
tokenizers write a token differently at the start of a text. What is added is shown up to the U+FFFD that it ends in:
those may be a character that is not complete yet. They are shown when other text follows, when the request ends,
or when there are more than 3, since an incomplete character has at most 3 bytes.

New tokens become the anchor when what they add ends cleanly. Where they never do (tokens that each end inside a
character, invalid bytes, special tokens that are skipped) the window is cut to its last tokens, and what was shown
is counted from its end. So a token costs the decoding of at most 30 others, however long the text is.

Edge cases: under byte fallback a run of byte tokens is decoded as a whole, and one invalid byte makes U+FFFD of all
of them; text that was shown before stays as it was shown. Spaces are never tidied: that would change shown text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

_ANCHOR: Final = 6
_LARGEST_WINDOW: Final = 24
_CUT_WINDOW: Final = 12  # 3 unshown U+FFFD are at most 9 bytes, and decoding is in step 3 bytes after any cut
_MOST_INCOMPLETE: Final = 3
_REPLACEMENT: Final = "\ufffd"


class Decodes(Protocol):
    """What is asked of a tokenizer here; transformers' tokenizers have it."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class IncrementalDetokenizer:
    """Turns a request's output tokens into text, one token at a time.

    tokenizer: transformers' interface. prompt_ids: the last few give the first token its context.
    """

    __slots__ = ("_anchor", "_anchor_text", "_num_shown", "_options", "_tokenizer", "_window")

    def __init__(self, tokenizer: Decodes, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._options: dict[str, Any] = {"skip_special_tokens": skip_special_tokens}
        if getattr(tokenizer, "clean_up_tokenization_spaces", False):
            self._options["clean_up_tokenization_spaces"] = False
        self._anchor = list(prompt_ids[-_ANCHOR:])
        self._anchor_text = self._decode(self._anchor)
        self._window: list[int] = []
        self._num_shown = 0  # characters of what the window adds

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; "" while a character is incomplete."""
        self._window.append(token_id)
        text = self._added(self._window)
        num_open = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MOST_INCOMPLETE)
        new = self._show(text, len(text) - num_open)
        if text and not num_open:
            self._settle()
        elif len(self._window) > _LARGEST_WINDOW:
            self._cut(len(text) - self._num_shown)
        return new

    def flush(self) -> str:
        """What is still held back, incomplete characters as U+FFFD."""
        text = self._added(self._window)
        new = self._show(text, len(text))
        self._settle()
        return new

    def _show(self, text: str, end: int) -> str:
        new = text[self._num_shown : end]
        self._num_shown = max(self._num_shown, end)
        return new

    def _settle(self) -> None:
        """The window's tokens are done: the last of them are the next anchor, if they stand for themselves."""
        anchor = self._window[-_ANCHOR:]
        text = self._decode(anchor)
        if text and _REPLACEMENT not in text:
            self._anchor, self._anchor_text = anchor, text
        self._window, self._num_shown = [], 0

    def _cut(self, num_open: int) -> None:
        """Keep the window's last tokens. num_open: how many U+FFFD at its end were not shown."""
        self._window = self._window[-_CUT_WINDOW:]
        text = self._added(self._window)
        if not text.endswith(_REPLACEMENT * num_open):
            # Byte fallback, a token for each byte: without its invalid beginning the run is valid.
            self._window = self._window[-num_open:]
            text = _REPLACEMENT * num_open
        self._num_shown = len(text) - num_open

    def _added(self, token_ids: Sequence[int]) -> str:
        """What `token_ids` add to the anchor's text."""
        whole = self._decode([*self._anchor, *token_ids])
        if whole.startswith(self._anchor_text):
            return whole[len(self._anchor_text) :]
        if self._anchor_text.endswith(_REPLACEMENT):
            # The prompt ended inside a character, which is completed here.
            return whole[_num_common(self._anchor_text, whole) :]
        # Byte fallback: the anchor's bytes and the new ones are a run that is invalid as a whole. Bytes need no anchor.
        return self._decode(token_ids)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, **self._options) if token_ids else ""


def _num_common(first: str, second: str) -> int:
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
