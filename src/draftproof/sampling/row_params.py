"""RowParams: a request's parameters at token level, made once per request by `resolve`.

Here strings become ids, ids are checked against the vocabulary, and masks that leave no token are
refused (T29): no chain is asked for the law of an empty row that could be known to be empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling.bad_words import bad_word_token_ids

_OFF: Final[dict[str, object]] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_tokens": 0,
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowParams:
    """What the chain reads for one row. Built by `resolve`; arrays are int64 and ascending unless said otherwise.

    vocab_size: how many logits count; wider rows are cut off there (T47).
    bias_ids [B], biases [B] float64: logit_bias. allowed_ids [A] or None: allowed_token_ids.
    banned_ids: bad words of one token. banned_sequences: those of two tokens or more.
    ending_ids: EOS and stop ids, masked while the output is shorter than min_tokens.
    top_k: 0 if off.
    """

    vocab_size: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    bias_ids: NDArray[np.int64]
    biases: NDArray[np.float64]
    allowed_ids: NDArray[np.int64] | None
    banned_ids: NDArray[np.int64]
    banned_sequences: tuple[tuple[int, ...], ...]
    ending_ids: NDArray[np.int64]

    def is_set(self, name: str) -> bool:
        """Whether the field of SamplingParams `name` does anything here."""
        if name == "allowed_token_ids":
            return self.allowed_ids is not None
        if name == "bad_words":
            return bool(len(self.banned_ids) or self.banned_sequences)
        if name == "logit_bias":
            return bool(len(self.bias_ids))
        return bool(getattr(self, name) != _OFF[name])

    def given(self, name: str) -> object:
        """What is set for the field of SamplingParams `name`, for messages."""
        if name == "allowed_token_ids":
            return None if self.allowed_ids is None else self.allowed_ids.tolist()
        if name == "bad_words":
            return [[token_id] for token_id in self.banned_ids.tolist()] + [list(ids) for ids in self.banned_sequences]
        if name == "logit_bias":
            return dict(zip(self.bias_ids.tolist(), self.biases.tolist(), strict=True))
        return getattr(self, name)


def resolve(
    params: SamplingParams,
    tokenizer: Any,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    *,
    bad_word_ids: Iterable[Sequence[int]] | None = None,
) -> RowParams:
    """The token-level form of `params`.

    tokenizer: needed for bad_words alone; None otherwise. vocab_size: the model's, without padding.
    eos_token_ids: every id that ends a text. bad_word_ids: banned id sequences, beside params.bad_words.
    Raises ParameterError for ids outside the vocabulary and for masks that leave no token.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 1:
        raise ParameterError("vocab_size", vocab_size, "an integer of 1 or more")
    sequences = [tuple(map(int, ids)) for ids in bad_word_ids or ()]
    if params.bad_words:
        if tokenizer is None:
            raise ParameterError(
                "bad_words", params.bad_words, "unset without a tokenizer", "give bad_word_ids instead"
            )
        sequences += [tuple(ids) for ids in bad_word_token_ids(tokenizer, params.bad_words)]
    if not all(sequences):
        raise ParameterError("bad_word_ids", [], "sequences of at least one token id")
    biases = dict(sorted((params.logit_bias or {}).items()))
    allowed = (
        None if params.allowed_token_ids is None else _ids("allowed_token_ids", params.allowed_token_ids, vocab_size)
    )
    _ids("bad_words", (token_id for ids in sequences for token_id in ids), vocab_size)
    stop_ids = _ids("stop_token_ids", params.stop_token_ids, vocab_size)
    eos_ids = _ids("eos_token_ids", eos_token_ids, vocab_size)
    row = RowParams(
        vocab_size=vocab_size,
        temperature=params.temperature,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        min_tokens=params.min_tokens,
        bias_ids=_ids("logit_bias", biases, vocab_size),
        biases=np.array(list(biases.values()), dtype=np.float64),
        allowed_ids=allowed,
        banned_ids=_ids("bad_words", (ids[0] for ids in sequences if len(ids) == 1), vocab_size),
        banned_sequences=tuple(dict.fromkeys(ids for ids in sequences if len(ids) > 1)),
        ending_ids=np.union1d(stop_ids, eos_ids),
    )
    _refuse_empty(row)
    return row


def _ids(name: str, token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    found = sorted(set(token_ids))
    if found and not 0 <= found[0] <= found[-1] < vocab_size:
        outside = [token_id for token_id in found if not 0 <= token_id < vocab_size]
        raise ParameterError(name, outside, f"token ids in [0, {vocab_size})", "remove these ids")
    return np.array(found, dtype=np.int64)


def _refuse_empty(row: RowParams) -> None:
    masked = np.union1d(row.banned_ids, row.bias_ids[row.biases == -math.inf])
    fields = [name for name in ("allowed_token_ids", "bad_words", "logit_bias") if row.is_set(name)]
    if row.min_tokens > 0:
        masked = np.union1d(masked, row.ending_ids)
        fields.append("min_tokens")
    if row.allowed_ids is None:
        num_open = row.vocab_size - len(masked)
    else:
        num_open = len(np.setdiff1d(row.allowed_ids, masked, assume_unique=True))
    if num_open == 0:
        raise ParameterError(
            ", ".join(fields),
            {name: row.given(name) for name in fields},
            "masks that together leave at least one token",
            "allow more tokens or ban fewer",
        )
