"""One example for every field of SamplingParams: values at which the field does something on the toy target.

A field without an example fails the build of docs/requests.md, and its test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch


@dataclass(frozen=True, slots=True)
class Example:
    """value: the field's. beside: other fields that it needs to do something. acts_on_law: it changes laws.

    written: how the page writes the value, if not as Python does.
    """

    value: Any
    acts_on_law: bool = False
    beside: Mapping[str, Any] = field(default_factory=dict)
    written: str = ""

    def fields_of(self, name: str) -> dict[str, Any]:
        """The fields of a request that shows the field `name`."""
        return {**self.beside, name: self.value}


def prefer_letters(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A custom processor: the token before the last becomes likelier."""
    if len(token_ids) > 1 and token_ids[-2] < len(logits):
        logits[token_ids[-2]] += 1.5
    return logits


def _law(value: Any, written: str = "", **beside: Any) -> Example:
    return Example(value, True, beside, written)


def _other(value: Any, **beside: Any) -> Example:
    return Example(value, False, beside)


EXAMPLES: Final[Mapping[str, Example]] = MappingProxyType(
    {
        "n": _other(3),
        "presence_penalty": _law(1.5),
        "frequency_penalty": _law(0.8),
        "repetition_penalty": _law(1.7),
        "temperature": _law(0.6),
        "top_p": _law(0.7),
        "top_k": _law(2),
        "min_p": _law(0.3),
        "seed": _other(2**64 - 1),
        "stop": _other(["db", "1"]),
        "stop_token_ids": _other([7]),
        "ignore_eos": _other(True),
        "max_tokens": _other(7),
        "min_tokens": _law(5, stop_token_ids=[2]),
        "logprobs": _other(3),
        "prompt_logprobs": _other(2),
        "detokenize": _other(False),
        "skip_special_tokens": _other(False, ignore_eos=True),
        "include_stop_str_in_output": _other(True, stop=["db", "1"]),
        "logit_bias": _law({1: 1.5, 2: -2.0}),
        "allowed_token_ids": _law([1, 2, 3, 7]),
        "bad_words": _law(["bc", "ca"]),
        "structured_outputs": _law({"regex": "(ab|c1|d)+"}),
        "typical_p": _law(0.7),
        "top_n_sigma": _law(0.8),
        "epsilon_cutoff": _law(0.1),
        "eta_cutoff": _law(0.2),
        "xtc_probability": _law(0.5),
        "xtc_threshold": _law(0.05, xtc_probability=0.6),
        "dry_multiplier": _law(2.0),
        "dry_base": _law(3.0, dry_multiplier=1.0),
        "dry_allowed_length": _law(1, dry_multiplier=1.0),
        "dry_penalty_last_n": _law(4, dry_multiplier=1.0, dry_allowed_length=1),
        "dry_sequence_breakers": _law(["b"], dry_multiplier=1.0),
        "mirostat": _law(2),
        "mirostat_tau": _law(1.5, mirostat=2),
        "mirostat_eta": _law(0.4, mirostat=1),
        "dynatemp_range": _law(0.5),
        "dynatemp_exponent": _law(2.0, dynatemp_range=0.5),
        "no_repeat_ngram_size": _law(2),
        "logits_processors": _law([prefer_letters], "a pure function"),
    }
)
"""field -> its example, in SamplingParams' order."""
