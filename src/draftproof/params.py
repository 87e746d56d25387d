"""SamplingParams: what one request asks of the sampler, in vLLM's words and with vLLM's defaults.

Every field is checked when the object is made. A value is honoured exactly or refused with a
ParameterError that names field, value and range; nothing is clamped, dropped or ignored. What needs
the vocabulary (ids in range, masks that leave no token) is checked by `sampling.resolve`.

Source: vLLM's SamplingParams, names, defaults and ranges. Deviations: temperature has no upper limit
and small values are not raised to 0.01; logit_bias outside [-100, 100] is refused, not clamped
(-inf bans a token); seed is 0 to 2**64 - 1, and -1 is refused where vLLM takes it for "unset".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Self

from draftproof.errors import ParameterError
from draftproof.refusals import REFUSED, refuse_unknown
from draftproof.sampler_fields import SamplerFields
from draftproof.structured import StructuredOutputsParams, structured_of
from draftproof.validation import (
    checked_bias,
    checked_integer,
    checked_real,
    checked_seed,
    checked_strings,
    checked_token_ids,
    checked_top_k,
)


@dataclass(frozen=True, kw_only=True)
class SamplingParams(SamplerFields):
    """One request's sampling parameters. All arguments are keywords; unknown ones raise ParameterError.

    n: samples per prompt, each with a noise stream of its own under the one seed; 1 at temperature 0.
    temperature: 0 is greedy; any finite positive number is honoured as given. Unset means 1.0, whatever else is set.
    top_p: (0, 1]; 1 is off. top_k: 1 or more; 0 and -1 are off. min_p: [0, 1]; 0 is off.
    seed: 0 to 2**64 - 1; None draws a fresh one, which the result returns.
    max_tokens: 1 or more; None goes on to the model's length.
    min_tokens: no EOS, stop token or stop string ends the output before so many tokens.
    stop: a string or strings that end the output. stop_token_ids: ids that end it. Both, and bad_words,
    may be given as None, and are kept as tuples.
    ignore_eos: EOS does not end the output.
    presence_penalty, frequency_penalty: [-2, 2], over the output. repetition_penalty: above 0, over prompt and output.
    logit_bias: token id to a number in [-100, 100], or -inf to ban the id.
    allowed_token_ids: only these ids may be sampled. bad_words: strings whose last token is banned
    where it would complete the word.
    logprobs: how many most likely tokens to report with each token; -1 is all, None reports none.
    prompt_logprobs: the same for the prompt's tokens, always of the model's raw logits; -1 is all.
    Samplers beyond vLLM's (typical_p, xtc_*, dry_*, mirostat*, logits_processors, …): see SamplerFields.
    structured_outputs: the texts that the output may be: a StructuredOutputsParams, or a mapping of its fields.
    detokenize: whether the result has text. skip_special_tokens, include_stop_str_in_output: as in vLLM.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    structured_outputs: StructuredOutputsParams | None = None

    def __new__(cls, *_: object, **given: object) -> Self:
        refuse_unknown(given, _FIELDS)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("n", checked_integer("n", self.n, 1))
        put("temperature", checked_real("temperature", self.temperature, 0.0))
        if self.n > 1 and self.temperature == 0.0:
            raise ParameterError("n", self.n, "1 at temperature 0, where all samples are the same", "set a temperature")
        put("top_p", checked_real("top_p", self.top_p, 0.0, 1.0, above=True))
        put("min_p", checked_real("min_p", self.min_p, 0.0, 1.0))
        put("top_k", checked_top_k(self.top_k))
        for name in ("presence_penalty", "frequency_penalty"):
            put(name, checked_real(name, getattr(self, name), -2.0, 2.0))
        put("repetition_penalty", checked_real("repetition_penalty", self.repetition_penalty, 0.0, above=True))
        if self.seed is not None:
            put("seed", checked_seed(self.seed))
        if self.max_tokens is not None:
            put("max_tokens", checked_integer("max_tokens", self.max_tokens, 1, or_none="until the model's length"))
        put("min_tokens", checked_integer("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                put(name, checked_integer(name, getattr(self, name), -1, or_none="to report none"))
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, getattr(self, name), "True or False")
        put("stop", checked_strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop))
        if self.stop and not self.detokenize:
            raise ParameterError("stop", self.stop, "unset where detokenize=False", "set detokenize=True")
        put("bad_words", checked_strings("bad_words", self.bad_words))
        put("stop_token_ids", checked_token_ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            put("allowed_token_ids", checked_token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ParameterError("allowed_token_ids", [], "None or at least one token id")
        put("logit_bias", checked_bias(self.logit_bias))
        put("structured_outputs", structured_of(self.structured_outputs, ignore_eos=self.ignore_eos))
        self.check_samplers()
        self.check_samplers_together()

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """SamplingParams from a mapping, as read from JSON.

        None means "unset" for every field. For max_tokens, whose None has a meaning of its own, it
        is taken as that meaning. Raises ParameterError for unknown keys, naming the closest field.
        """
        refuse_unknown(given, _FIELDS)
        return cls(**{k: v for k, v in given.items() if k not in REFUSED and (v is not None or k == "max_tokens")})

    @property
    def is_greedy(self) -> bool:
        """True if temperature is 0: the most probable token, and no noise."""
        return self.temperature == 0.0


_OTHERS = tuple(item.name for item in fields(SamplerFields))
_FIELDS = tuple(item.name for item in fields(SamplingParams) if item.name not in _OTHERS) + _OTHERS


def _taking_neutral_values(init: Callable[..., None]) -> Callable[..., None]:
    """`__init__` that takes other engines' fields at the values that change nothing; `__new__` has refused the rest."""

    @wraps(init)
    def __init__(self: SamplingParams, **given: object) -> None:
        init(self, **{name: value for name, value in given.items() if name not in REFUSED})

    return __init__


SamplingParams.__init__ = _taking_neutral_values(SamplingParams.__init__)  # type: ignore[method-assign]
