"""From a request's parameters to token level: strings become ids, ids are checked against the vocabulary.

Masks that leave no token are refused here (T29): no chain is asked for the law of an empty row that could be known to
be empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling.bad_words import bad_word_token_ids
from draftproof.sampling.custom import Processors
from draftproof.sampling.dry import Breakers, Dry
from draftproof.sampling.dry_breakers import breakers_of
from draftproof.sampling.mirostat import Mirostat
from draftproof.sampling.row_params import RowParams


def resolve(
    params: SamplingParams,
    tokenizer: Any,
    vocab_size: int,
    eos_token_ids: Sequence[int] = (),
    *,
    bad_word_ids: Iterable[Sequence[int]] | None = None,
    dry_breaker_ids: Iterable[Sequence[int]] | None = None,
) -> RowParams:
    """The token-level form of `params`.

    tokenizer: needed for bad_words and for DRY's sequence breakers; None otherwise. vocab_size: the model's, without
    padding. eos_token_ids: every id that ends a text. bad_word_ids: banned id sequences, beside params.bad_words.
    dry_breaker_ids: sequence breakers as ids, instead of params.dry_sequence_breakers.
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
        typical_p=params.typical_p,
        top_n_sigma=max(params.top_n_sigma, 0.0),
        epsilon_cutoff=params.epsilon_cutoff,
        eta_cutoff=params.eta_cutoff,
        xtc_probability=params.xtc_probability,
        xtc_threshold=params.xtc_threshold,
        dynatemp_range=params.dynatemp_range,
        dynatemp_exponent=params.dynatemp_exponent,
        no_repeat_ngram_size=params.no_repeat_ngram_size,
        dry=_dry(params, tokenizer, vocab_size, dry_breaker_ids),
        mirostat=(
            Mirostat.begin(params.mirostat, params.mirostat_tau, params.mirostat_eta) if params.mirostat else None
        ),
        processors=Processors(params.logits_processors) if params.logits_processors else None,
    )
    _refuse_empty(row)
    return row


def _dry(
    params: SamplingParams, tokenizer: Any, vocab_size: int, breaker_ids: Iterable[Sequence[int]] | None
) -> Dry | None:
    if params.dry_multiplier == 0.0 or params.dry_penalty_last_n == 0:
        return None
    breakers: Breakers = {}
    if breaker_ids is not None:
        listed = [tuple(map(int, ids)) for ids in breaker_ids]
        _ids("dry_sequence_breakers", (token_id for ids in listed for token_id in ids), vocab_size)
        if not all(listed):
            raise ParameterError("dry_breaker_ids", [], "sequences of at least one token id")
        heads = dict.fromkeys(ids[0] for ids in listed)
        breakers = {head: tuple(ids[1:] for ids in listed if ids[0] == head) for head in heads}
    elif params.dry_sequence_breakers:
        if tokenizer is None:
            raise ParameterError(
                "dry_sequence_breakers",
                list(params.dry_sequence_breakers),
                "empty without a tokenizer",
                "set dry_sequence_breakers=[]",
            )
        breakers = breakers_of(tokenizer, params.dry_sequence_breakers, vocab_size)
    last_n = None if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n
    return Dry(params.dry_multiplier, params.dry_base, params.dry_allowed_length, last_n, breakers)


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
