"""The fields of SamplingParams that vLLM doesn't have: samplers of llama.cpp and transformers, in those engines' words.

Source: llama.cpp's server (typical_p, top_n_sigma, xtc_*, dry_*, mirostat*, dynatemp_*), transformers'
GenerationConfig (epsilon_cutoff, eta_cutoff, no_repeat_ngram_size), vLLM 0's SamplingParams (logits_processors).
Defaults are those engines' own, so that everything is off until it is asked for. What can't be honoured together is
refused here; what a preset's engine lacks is refused by the sampler chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from draftproof.errors import ParameterError
from draftproof.validation import checked_integer, checked_real, checked_strings

LONGEST_BREAKER: Final = 40
"""Bytes of a DRY sequence breaker; llama.cpp cuts longer ones off."""

REFUSED_AT_ZERO: Final = {"typical_p": 1.0, "xtc_probability": 0.0, "dynatemp_range": 0.0}
"""Fields that temperature 0 refuses, with their values that are off: the largest logit need not survive them."""
_REFUSED_WITH_MIROSTAT: Final = {
    "top_k": (0, -1),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "top_n_sigma": (0.0, -1.0),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "xtc_probability": (0.0,),
    "dynatemp_range": (0.0,),
}


@dataclass(frozen=True, kw_only=True)
class SamplerFields:
    """Filters and samplers beyond vLLM's.

    typical_p: (0, 1]; 1 is off. top_n_sigma: 0 and -1 are off. epsilon_cutoff, eta_cutoff: [0, 1); 0 is off.
    xtc_probability: [0, 1], how often the top choices are excluded; 0 is off. xtc_threshold: [0, 0.5].
    dry_multiplier: 0 is off. dry_base: 1 or more. dry_allowed_length: 1 or more. dry_penalty_last_n: how many last
    tokens are looked at, prompt included; -1 is all, 0 is off. dry_sequence_breakers: strings that end a repetition.
    mirostat: 0 (off), 1 or 2. mirostat_tau: target surprise in bits. mirostat_eta: learning rate.
    dynatemp_range: half the width of the temperature's range; 0 is off. dynatemp_exponent: 0 or more.
    no_repeat_ngram_size: no n-gram of so many tokens appears twice in prompt and output; 0 is off.
    logits_processors: functions (token_ids, logits) -> logits, or objects with a state; see sampling/custom.py.
    """

    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    no_repeat_ngram_size: int = 0
    logits_processors: Sequence[Callable[..., Any]] = field(default=(), hash=False)

    def check_samplers(self) -> None:
        """Check each field by itself and put it into its own type. Raises ParameterError."""

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("typical_p", checked_real("typical_p", self.typical_p, 0.0, 1.0, above=True))
        if self.top_n_sigma != -1:
            put("top_n_sigma", checked_real("top_n_sigma", self.top_n_sigma, 0.0))
        for name in ("epsilon_cutoff", "eta_cutoff"):
            put(name, checked_real(name, getattr(self, name), 0.0, 1.0))
            if getattr(self, name) == 1.0:
                raise ParameterError(name, 1.0, "a number in [0, 1)", "1 would keep nothing but certain tokens")
        put("xtc_probability", checked_real("xtc_probability", self.xtc_probability, 0.0, 1.0))
        put("xtc_threshold", checked_real("xtc_threshold", self.xtc_threshold, 0.0, 0.5))
        put("dry_multiplier", checked_real("dry_multiplier", self.dry_multiplier, 0.0))
        put("dry_base", checked_real("dry_base", self.dry_base, 1.0))
        put("dry_allowed_length", checked_integer("dry_allowed_length", self.dry_allowed_length, 1))
        put("dry_penalty_last_n", checked_integer("dry_penalty_last_n", self.dry_penalty_last_n, -1))
        put("dry_sequence_breakers", _breakers(self.dry_sequence_breakers))
        put("mirostat", checked_integer("mirostat", self.mirostat, 0))
        if self.mirostat > 2:
            raise ParameterError("mirostat", self.mirostat, "0 (off), 1 or 2")
        put("mirostat_tau", checked_real("mirostat_tau", self.mirostat_tau, 0.0, above=True))
        put("mirostat_eta", checked_real("mirostat_eta", self.mirostat_eta, 0.0))
        put("dynatemp_range", checked_real("dynatemp_range", self.dynatemp_range, 0.0))
        put("dynatemp_exponent", checked_real("dynatemp_exponent", self.dynatemp_exponent, 0.0))
        put("no_repeat_ngram_size", checked_integer("no_repeat_ngram_size", self.no_repeat_ngram_size, 0))
        put("logits_processors", _processors(self.logits_processors))

    def check_samplers_together(self) -> None:
        """Raise ParameterError for samplers that can't be honoured together, or not at this temperature."""
        if getattr(self, "temperature") == 0.0:  # noqa: B009  # a field of the class that has these fields
            for name, off in REFUSED_AT_ZERO.items():
                if getattr(self, name) != off:
                    raise ParameterError(
                        name,
                        getattr(self, name),
                        "left unset at temperature 0, which takes the largest logit and samples from nothing",
                        "set a temperature above 0",
                    )
        if self.mirostat:
            for name, offs in _REFUSED_WITH_MIROSTAT.items():
                if getattr(self, name) not in offs:
                    raise ParameterError(
                        name,
                        getattr(self, name),
                        f"left unset with mirostat={self.mirostat}, which sets the cut by itself",
                        "unset one of the two",
                    )


def _breakers(value: object) -> tuple[str, ...]:
    breakers = checked_strings("dry_sequence_breakers", value)
    for breaker in breakers:
        if len(breaker.encode()) > LONGEST_BREAKER:
            raise ParameterError("dry_sequence_breakers", breaker, f"strings of at most {LONGEST_BREAKER} bytes")
    return breakers


def _processors(value: object) -> tuple[Callable[..., Any], ...]:
    allowed = "a list of functions (token_ids, logits) -> logits"
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ParameterError("logits_processors", value, allowed)
    for processor in value:
        if not callable(processor):
            raise ParameterError("logits_processors", processor, allowed, f"got a {type(processor).__name__}")
    return tuple(value)
