"""The parameters that a proof runs the sampler chain with: every one that acts on the law, by a name for messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from draftproof.sampler_fields import REFUSED_AT_ZERO

if TYPE_CHECKING:
    import torch

PENALTIES: Final = "repetition, presence and frequency penalties"


def _after_a_one(token_ids: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
    """A pure processor: what follows token 1 is more likely to be token 0, the more so the longer the row is."""
    if token_ids[-1] == 1:
        logits[0] += 0.25 * len(token_ids)
    return logits


class _Tired:
    """A processor with an explicit state: each output token lowers the logit of token 0, and of itself more."""

    def __init__(self, lowered: tuple[int, ...] = ()) -> None:
        self.lowered = lowered

    def __call__(self, token_ids: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        logits[0] -= 0.25 * len(self.lowered)
        for token_id in self.lowered:
            logits[token_id] -= 0.5
        return logits

    def fork(self) -> _Tired:
        return self

    def extended(self, token_id: int) -> _Tired:
        return _Tired((*self.lowered, token_id))


SAMPLER_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "typical-p 0.6": {"typical_p": 0.6},
        "top-n-sigma 1": {"top_n_sigma": 1.0, "temperature": 1.5},
        "epsilon cutoff 0.2": {"epsilon_cutoff": 0.2},
        "eta cutoff 0.4": {"eta_cutoff": 0.4},
        "XTC": {"xtc_probability": 0.25, "xtc_threshold": 0.2},
        "XTC, penalties": {"xtc_probability": 0.5, "xtc_threshold": 0.1, "frequency_penalty": 0.5},
        "DRY": {"dry_multiplier": 0.75, "dry_base": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
        "mirostat 1": {"mirostat": 1, "mirostat_tau": 0.9, "mirostat_eta": 1.0},
        "mirostat 2": {"mirostat": 2, "mirostat_tau": 0.75, "mirostat_eta": 1.0},
        "mirostat 2, frequency penalty": {
            "mirostat": 2, "mirostat_tau": 0.6, "mirostat_eta": 1.0, "frequency_penalty": 0.5,
        },
        "dynamic temperature": {"dynatemp_range": 0.75, "dynatemp_exponent": 2.0},
        "n-grams of 4": {"no_repeat_ngram_size": 4, "logit_bias": {0: 1.5}},
        "pure processor": {"logits_processors": (_after_a_one,)},
        "processor with a state": {"logits_processors": (_Tired(), _after_a_one), "min_p": 0.1},
    }
)  # fmt: skip
"""Samplers beyond vLLM's."""

CHAIN_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        PENALTIES: {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.7},
        "top-k 2, top-p 0.9, temperature 0.7": {"top_k": 2, "top_p": 0.9, "temperature": 0.7},
        "min-p 0.3, presence penalty 1": {"min_p": 0.3, "presence_penalty": 1.0},
        "logit bias, allowed tokens, frequency penalty": {
            "logit_bias": {0: 1.5}, "allowed_token_ids": [0, 1], "frequency_penalty": 1.0,
        },
        **SAMPLER_SETTINGS,
    }
)  # fmt: skip
"""SamplingParams' fields, by a name for messages."""


def allows_zero(name: str) -> bool:
    """Whether these parameters go with temperature 0; True for what is no setting."""
    return not REFUSED_AT_ZERO.keys() & CHAIN_SETTINGS.get(name, {}).keys()
