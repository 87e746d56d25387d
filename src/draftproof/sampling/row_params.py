"""RowParams: a request's parameters at token level, made once per request by `resolve`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.custom import Processors
from draftproof.sampling.dry import Dry
from draftproof.sampling.history import History
from draftproof.sampling.mirostat import Mirostat

_OFF: Final[dict[str, object]] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_tokens": 0,
    "typical_p": 1.0,
    "top_n_sigma": 0.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "no_repeat_ngram_size": 0,
}
_OPTIONAL: Final = {"dry_multiplier": "dry", "mirostat": "mirostat", "logits_processors": "processors"}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, weakref_slot=True)
class RowParams:
    """What the chain reads for one row. Built by `resolve`; arrays are int64 and ascending unless said otherwise.

    vocab_size: how many logits count; wider rows are cut off there (T47).
    bias_ids [B], biases [B] float64: logit_bias. allowed_ids [A] or None: allowed_token_ids.
    banned_ids: bad words of one token. banned_sequences: those of two tokens or more.
    ending_ids: EOS and stop ids, masked while the output is shorter than min_tokens.
    top_k, top_n_sigma: 0 if off. dry, mirostat (as it begins), processors: None if off.
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
    typical_p: float
    top_n_sigma: float
    epsilon_cutoff: float
    eta_cutoff: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    no_repeat_ngram_size: int
    dry: Dry | None
    mirostat: Mirostat | None
    processors: Processors | None

    def first_history(self, prompt_ids: Iterable[int]) -> History:
        """The history of a request that begins: its prompt, and the first states of samplers that remember."""
        states = () if self.processors is None else self.processors.first_states()
        return History(prompt_ids, states=states if self.mirostat is None else (*states, self.mirostat))

    def is_set(self, name: str) -> bool:
        """Whether the field of SamplingParams `name` does anything here."""
        if name == "allowed_token_ids":
            return self.allowed_ids is not None
        if name == "bad_words":
            return bool(len(self.banned_ids) or self.banned_sequences)
        if name == "logit_bias":
            return bool(len(self.bias_ids))
        if name in _OPTIONAL:
            return getattr(self, _OPTIONAL[name]) is not None
        return bool(getattr(self, name) != _OFF[name])

    def given(self, name: str) -> object:
        """What is set for the field of SamplingParams `name`, for messages."""
        if name == "allowed_token_ids":
            return None if self.allowed_ids is None else self.allowed_ids.tolist()
        if name == "bad_words":
            return [[token_id] for token_id in self.banned_ids.tolist()] + [list(ids) for ids in self.banned_sequences]
        if name == "logit_bias":
            return dict(zip(self.bias_ids.tolist(), self.biases.tolist(), strict=True))
        if name == "dry_multiplier":
            return 0.0 if self.dry is None else self.dry.multiplier
        if name == "mirostat":
            return 0 if self.mirostat is None else self.mirostat.version
        if name == "logits_processors":
            return [] if self.processors is None else self.processors.names()
        return getattr(self, name)
