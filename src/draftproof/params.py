"""SamplingParams: what one request asks of the sampler, in vLLM's words and with vLLM's defaults.

Every field is checked when the object is made. A value is honoured exactly or refused with a
ParameterError that names field, value and range; nothing is clamped, dropped or ignored. What needs
the vocabulary (ids in range, masks that leave no token) is checked by `sampling.resolve`.

Source: vLLM's SamplingParams, names, defaults and ranges. Deviations: temperature has no upper limit
and small values are not raised to 0.01; logit_bias outside [-100, 100] is refused, not clamped
(-inf bans a token); seed is 0 to 2**64 - 1, and -1 is refused where vLLM takes it for "unset".
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Self

from draftproof.errors import ParameterError

_LATER = "left unset, which this release requires"
_UNSUPPORTED: dict[str, tuple[tuple[object, ...], str]] = {
    "best_of": ((None, 1), "submit the prompt several times, each with its own seed"),
    "prompt_logprobs": ((None,), "prompts are prefilled without logits"),
    "prompt_logprob_token_ids": ((None,), "prompts are prefilled without logits"),
    "prompt_logprob_start": ((None,), "prompts are prefilled without logits"),
    "logprob_token_ids": ((None,), "ask for logprobs=-1 and pick the ids from the answer"),
    "flat_logprobs": ((False,), ""),
    "spaces_between_special_tokens": ((True,), ""),
    "output_kind": ((None,), "use stream_generate for increments, generate for whole texts"),
    "stream_interval": ((None,), ""),
    "structured_outputs": ((None,), "constrained decoding comes with a later release; allowed_token_ids is here"),
    "guided_decoding": ((None,), "constrained decoding comes with a later release; allowed_token_ids is here"),
    "logits_processors": ((None, []), "write a filter for the sampler chain instead"),
    "extra_args": ((None, {}), ""),
    "thinking_token_budget": ((None,), ""),
    "repetition_detection": ((None,), ""),
    "truncate_prompt_tokens": ((None,), "truncate the prompt before the call"),
    "skip_reading_prefix_cache": ((None,), ""),
    "trace_decode_token_ids": ((None,), ""),
    "typical_p": ((None, 1.0), "this filter is not in the chain"),
    "use_beam_search": ((None, False), "beam search is not sampling: there is no law to keep"),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """One request's sampling parameters. All arguments are keywords; unknown ones raise ParameterError.

    n: samples per prompt; only 1 in this release.
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
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()

    def __new__(cls, *_: object, **given: object) -> Self:
        _refuse_unknown(given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if _integer("n", self.n, 1) > 1:
            raise ParameterError(
                "n", self.n, "1 in this release", "submit the prompt several times, each with its own seed"
            )
        put("temperature", _real("temperature", self.temperature, 0.0))
        put("top_p", _real("top_p", self.top_p, 0.0, 1.0, above=True))
        put("min_p", _real("min_p", self.min_p, 0.0, 1.0))
        put("top_k", _top_k(self.top_k))
        for name in ("presence_penalty", "frequency_penalty"):
            put(name, _real(name, getattr(self, name), -2.0, 2.0))
        put("repetition_penalty", _real("repetition_penalty", self.repetition_penalty, 0.0, above=True))
        if self.seed is not None:
            put("seed", _seed(self.seed))
        if self.max_tokens is not None:
            put("max_tokens", _integer("max_tokens", self.max_tokens, 1, or_none="until the model's length"))
        put("min_tokens", _integer("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        if self.logprobs is not None:
            put("logprobs", _integer("logprobs", self.logprobs, -1, or_none="to report none"))
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, getattr(self, name), "True or False")
        put("stop", _strings("stop", (self.stop,) if isinstance(self.stop, str) else self.stop))
        if self.stop and not self.detokenize:
            raise ParameterError("stop", self.stop, "unset where detokenize=False", "set detokenize=True")
        put("bad_words", _strings("bad_words", self.bad_words))
        put("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            put("allowed_token_ids", _token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ParameterError("allowed_token_ids", [], "None or at least one token id")
        put("logit_bias", _bias(self.logit_bias))

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """SamplingParams from a mapping, as read from JSON.

        None means "unset" for every field. For max_tokens, whose None has a meaning of its own, it
        is taken as that meaning. Raises ParameterError for unknown keys, naming the closest field.
        """
        _refuse_unknown(given)
        return cls(**{k: v for k, v in given.items() if k not in _UNSUPPORTED and (v is not None or k == "max_tokens")})

    @property
    def is_greedy(self) -> bool:
        """True if temperature is 0: the most probable token, and no noise."""
        return self.temperature == 0.0


_FIELDS = tuple(item.name for item in fields(SamplingParams))


def _refuse_unknown(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if name in _FIELDS:
            continue
        if name in _UNSUPPORTED:
            neutral, hint = _UNSUPPORTED[name]
            if any(value is item or (type(value) is type(item) and value == item) for item in neutral):
                continue
            raise ParameterError(name, value, _LATER, hint)
        close = difflib.get_close_matches(str(name), _FIELDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(_FIELDS)}"
        raise ParameterError(str(name), value, "a field of SamplingParams", hint)


def _real(name: str, value: object, low: float, high: float = math.inf, *, above: bool = False) -> float:
    edge = "(" if above else "["
    allowed = f"a number in {edge}{low:g}, {high:g}]" if high < math.inf else f"a finite number in {edge}{low:g}, inf)"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(name, value, allowed, f"got a {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high or (above and number == low):
        raise ParameterError(name, value, allowed)
    return number


def _integer(name: str, value: object, low: int, *, or_none: str = "") -> int:
    allowed = f"an integer of {low} or more" + (f", or None {or_none}" if or_none else "")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(name, value, allowed, f"got a {type(value).__name__}")
    if int(value) < low:
        raise ParameterError(name, value, allowed)
    return int(value)


def _top_k(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < -1:
        raise ParameterError("top_k", value, "an integer of 1 or more, or 0 or -1 to keep every token")
    return int(value)


def _seed(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**64:
        raise ParameterError("seed", value, "an integer in [0, 2**64)", "leave it unset for a fresh seed")
    return int(value)


def _strings(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    allowed = "strings of at least one character"
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ParameterError(name, value, f"a list of {allowed}")
    items = tuple(value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise ParameterError(name, item, allowed)
    return tuple(dict.fromkeys(items))


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ParameterError(name, value, "a list of token ids")
    return tuple(dict.fromkeys(_integer(name, item, 0) for item in value))


def _bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ParameterError("logit_bias", value, "a mapping from token id to a number")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        # JSON objects have string keys, and so does OpenAI's API.
        token_id = _integer("logit_bias", int(key) if isinstance(key, str) and key.isdecimal() else key, 0)
        number = math.nan if isinstance(bias, bool) or not isinstance(bias, Real) else float(bias)
        if not (-100.0 <= number <= 100.0 or number == -math.inf):
            raise ParameterError("logit_bias", {key: bias}, "a number in [-100, 100], or -inf to ban the token")
        if token_id in biases:
            raise ParameterError("logit_bias", key, "given once for each token id")
        biases[token_id] = number
    return biases
