"""DRY's sequence breakers, from strings to token ids: every way in which a text of tokens can hold the string.

Rule: a token whose text contains the breaker is one by itself; a token whose text ends with a beginning of the breaker
begins one, which the tokens of the breaker's rest complete.
In: a tokenizer and strings. Out: `Breakers`; see dry.py. Made once for each tokenizer and string.
Edge cases: the rest is tokenised in one way, the tokenizer's own, as in llama.cpp, and cut after 20 tokens. A token's
text is what the tokenizer decodes it to alone: a part of a character is no part of a breaker.
Source: KoboldCpp pull request 982; llama.cpp's get_overlapping_token_sequences.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final

from draftproof.sampling.dry import Breakers

_LONGEST_TAIL: Final = 20
_Found = dict[int, tuple[tuple[int, ...], ...]]

_known: weakref.WeakKeyDictionary[Any, tuple[list[str], dict[str, _Found]]] = weakref.WeakKeyDictionary()


def breakers_of(tokenizer: Any, strings: Sequence[str], vocab_size: int) -> Breakers:
    """The breakers of `strings`. tokenizer: with transformers' `decode` and `encode`."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for string in strings:
        for token_id, tails in _of_string(tokenizer, string, vocab_size).items():
            found.setdefault(token_id, []).extend(tails)
    return {token_id: tuple(dict.fromkeys(tails)) for token_id, tails in found.items()}


def _of_string(tokenizer: Any, string: str, vocab_size: int) -> _Found:
    texts, of_strings = _known_of(tokenizer, vocab_size)
    if string not in of_strings:
        of_strings[string] = _overlapping(tokenizer, texts, string)
    return of_strings[string]


def _known_of(tokenizer: Any, vocab_size: int) -> tuple[list[str], dict[str, _Found]]:
    known = _known.get(tokenizer)
    if known is None or len(known[0]) != vocab_size:
        # The tokenizer inside transformers' own decodes one token four times as fast.
        inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
        known = ([_text(inner, token_id) for token_id in range(vocab_size)], {})
        _known[tokenizer] = known
    return known


def _text(tokenizer: Any, token_id: int) -> str:
    # An id beyond the tokenizer's own is padding of the model's vocabulary: it has no text.
    try:
        return str(tokenizer.decode([token_id], skip_special_tokens=False) or "")
    except (IndexError, KeyError, OverflowError, TypeError):
        return ""


def _overlapping(tokenizer: Any, texts: Sequence[str], string: str) -> _Found:
    found: _Found = {}
    tails = {taken: _rest(tokenizer, string[taken:]) for taken in range(1, len(string))}
    for token_id, text in enumerate(texts):
        if string in text:
            found[token_id] = ((),)
            continue
        begun = [tail for taken, tail in tails.items() if text.endswith(string[:taken])]
        if begun:
            found[token_id] = tuple(dict.fromkeys(begun))
    return found


def _rest(tokenizer: Any, text: str) -> tuple[int, ...]:
    encoded = tokenizer.encode(text, add_special_tokens=False)
    return tuple(int(token_id) for token_id in getattr(encoded, "ids", encoded))[:_LONGEST_TAIL]
