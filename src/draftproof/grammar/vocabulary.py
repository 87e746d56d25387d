"""What each token id writes: the bytes that a grammar reads.

Rule: an id's bytes are what the tokenizer decodes it to, before characters are put together. A special token writes
nothing that a grammar could use: the text `<|im_start|>` in a JSON string has to be spelled out, or leaving special
tokens out of the decoded text would break what the grammar built. Ids beyond the tokenizer (a padded vocabulary) write
nothing either, and are never allowed.
Source: transformers' fast tokenizers, read by the backends (byte-level, byte-fallback and plain vocabularies). Any
other tokenizer can take part by a `token_bytes` attribute: [K] bytes, b"" for an id without text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import GrammarError


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """[V] token_bytes, b"" where an id has no text of its own; special_texts: id -> bytes of special tokens.

    eos_token_ids: the model's. tokenizer: what they were read from. has_text: [V] bool.
    """

    token_bytes: tuple[bytes, ...]
    special_texts: Mapping[int, bytes]
    eos_token_ids: tuple[int, ...]
    tokenizer: Any
    has_text: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """How many ids the model's rows have."""
        return len(self.token_bytes)

    def text_of(self, token_id: int) -> bytes:
        """The bytes of an id, a special token's too."""
        return self.token_bytes[token_id] or self.special_texts.get(token_id, b"")

    def without_text(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Those of `token_ids` that no grammar can use as text."""
        return tuple(token_id for token_id in token_ids if not self.has_text[token_id])


def vocabulary_of(
    tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int], read_fast: Callable[[Any, int], Sequence[bytes]]
) -> Vocabulary:
    """The vocabulary of a tokenizer.

    vocab_size: the width of the model's rows that counts. read_fast: (a fast tokenizer, vocab_size) -> [V] bytes, from
    a backend. Raises GrammarError without a tokenizer, and for one whose bytes are not known.
    """
    if tokenizer is None:
        raise GrammarError(
            "structured_outputs needs the model's tokenizer, and this engine has none; give one, or constrain ids with "
            "allowed_token_ids"
        )
    given = getattr(tokenizer, "token_bytes", None)
    if given is None and not hasattr(tokenizer, "backend_tokenizer"):
        raise GrammarError(
            f"structured_outputs can't read what the tokens of a {type(tokenizer).__name__} write; use a fast "
            "tokenizer of transformers, or give it a `token_bytes` attribute"
        )
    table = list(read_fast(tokenizer, vocab_size) if given is None else given)[:vocab_size]
    table += [b""] * (vocab_size - len(table))
    special_ids = {*_special_ids(tokenizer), *eos_token_ids} & set(range(vocab_size))
    texts = {token_id: table[token_id] for token_id in special_ids if table[token_id]}
    for token_id in special_ids:
        table[token_id] = b""
    has_text = np.array([bool(text) for text in table], dtype=np.bool_)
    has_text.flags.writeable = False
    return Vocabulary(tuple(table), texts, tuple(eos_token_ids), tokenizer, has_text)


def _special_ids(tokenizer: Any) -> set[int]:
    found = {int(token_id) for token_id in getattr(tokenizer, "all_special_ids", ())}
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    return found | {int(token_id) for token_id, token in added.items() if getattr(token, "special", False)}
