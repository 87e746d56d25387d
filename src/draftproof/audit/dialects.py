"""What a completions endpoint is sent: sampling parameters in its server's words.

Every sampler that the server has is sent, also at its neutral value: servers have defaults of their own, and vLLM takes
a model's generation_config.json for its. A parameter that the dialect has no word for is refused, unless it is neutral.

- vllm: vLLM, SGLang, draftproof; vLLM's extensions of OpenAI's fields.
- llama.cpp: its server; `repeat_penalty` over the last 64 tokens, as the preset has it, biases as pairs. It leaves the
  token that ends an output out of its answer, so `ignore_eos` must be set; there it bans EOS, which a bias of -100 says
  to the scorer.
- openai: the fields of OpenAI's completions alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from draftproof import ParameterError, SamplingParams
from draftproof.audit.engine import Refusal, Request

_STANDARD: Final = {
    name: name for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "logit_bias")
}
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "openai": _STANDARD,
    "vllm": _STANDARD
    | {
        name: name
        for name in (
            "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "allowed_token_ids",
            "bad_words",
        )
    },
    "llama.cpp": _STANDARD
    | {
        "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty", "ignore_eos": "ignore_eos",
        "typical_p": "typical_p", "top_n_sigma": "top_n_sigma",
    },
}  # fmt: skip
DIALECTS: Final = tuple(_WORDS)
_ALWAYS: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_WINDOW: Final = 64  # tokens that penalties look at: the preset's, and the server's own
_HERE: Final = {"max_tokens", "seed", "logprobs", "detokenize", "n", "skip_special_tokens"}


def check_dialect(dialect: str) -> str:
    """`dialect`, if there is one of that name. Raises ParameterError."""
    if dialect not in _WORDS:
        raise ParameterError("dialect", dialect, ", ".join(DIALECTS))
    return dialect


def sampling_fields(request: Request, dialect: str) -> dict[str, Any]:
    """The body's sampling fields. Raises Refusal for a parameter that the dialect has no word for."""
    params, default, words = request.params, SamplingParams(), _WORDS[dialect]
    if dialect == "llama.cpp" and not params.ignore_eos:
        raise Refusal(
            "llama.cpp's completions don't show the token that ended them: set ignore_eos, and ban EOS by bias"
        )
    found: dict[str, Any] = {"max_tokens": params.max_tokens, "seed": request.seed & 0x7FFFFFFF}
    for item in fields(SamplingParams):
        value, is_neutral = getattr(params, item.name), getattr(params, item.name) == getattr(default, item.name)
        if item.name in _HERE or (is_neutral and not (item.name in _ALWAYS and item.name in words)):
            continue
        if item.name not in words:
            raise Refusal(f"a completions endpoint that speaks {dialect} has no {item.name}")
        found[words[item.name]] = _plain(item.name, value, dialect)
    if dialect == "llama.cpp":
        found["repeat_last_n"] = _WINDOW
    return found


def _plain(name: str, value: Any, dialect: str) -> Any:
    if name == "logit_bias":
        return [[k, v] for k, v in value.items()] if dialect == "llama.cpp" else {str(k): v for k, v in value.items()}
    return list(value) if isinstance(value, (tuple, frozenset, set)) else value
