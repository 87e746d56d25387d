"""Bad words: the last token of a banned sequence is masked where it would complete the sequence.

Formula: z[s_n] = -inf where the row's history ends with s_1 … s_{n-1}; always, if n = 1.
In: the row's own history, drafts before it included (T28), and sequences of token ids. Out: ids to mask.
Edge cases: vLLM matches within the output only, transformers in prompt and output (`prompt=True`).
Source: vLLM's bad_words, with both tokenisations of a word: at the start of a text and after a space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from draftproof.errors import ParameterError
from draftproof.sampling.history import History


def banned_ids(history: History, sequences: Iterable[tuple[int, ...]], *, prompt: bool) -> list[int]:
    """The ids that would complete one of `sequences` (each of 2 ids or more) after `history`."""
    return [ids[-1] for ids in sequences if history.last(len(ids) - 1, prompt=prompt) == ids[:-1]]


def bad_word_token_ids(tokenizer: Any, words: Sequence[str]) -> list[list[int]]:
    """Token id sequences that ban `words` both at a text's start and after a space.

    tokenizer: anything with transformers' `encode(text, add_special_tokens=False)`, or a tokenizers.Tokenizer.
    The form after a space is added only if it starts with another token and has as many tokens as
    the form without, as in vLLM: otherwise its last tokens are the form's without, or it bans a
    word's first space. Raises ParameterError for a word without tokens.
    """
    found: list[list[int]] = []
    for word in words:
        plain = _encode(tokenizer, word.lstrip())
        if not plain:
            raise ParameterError("bad_words", word, "a string of at least one token")
        found.append(plain)
        spaced = _encode(tokenizer, " " + word.lstrip())
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            found.append(spaced)
    return found


def _encode(tokenizer: Any, text: str) -> list[int]:
    encoded = tokenizer.encode(text, add_special_tokens=False)
    return [int(token_id) for token_id in getattr(encoded, "ids", encoded)]
