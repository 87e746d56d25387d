"""A flag for every field of SamplingParams, made from the dataclass itself."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from draftproof.cli.structured_flags import given_structured, structured_flags
from draftproof.cli.values import Given, Lines, Number, to_biases, to_ids
from draftproof.params import SamplingParams
from draftproof.sampler_fields import SamplerFields

DEFAULT_MAX_TOKENS: Final = 256
"""The command line's own default; the library's, 16, is vLLM's."""

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "temperature": ("--temp",),
    "max_tokens": ("--max-new-tokens", "-n"),
    "typical_p": ("--typical",),
    "top_n_sigma": ("--top-nsigma",),
    "dry_sequence_breakers": ("--dry-sequence-breaker",),
    "mirostat_tau": ("--mirostat-ent",),
    "mirostat_eta": ("--mirostat-lr",),
    "dynatemp_exponent": ("--dynatemp-exp",),
}

NO_FLAG: Final = ("logits_processors", "structured_outputs")
"""Fields that hold Python functions, and one that has flags of its own."""

HELP: Final[Mapping[str, str]] = {
    "n": "Samples per prompt, each with its own stream of the seed.",
    "presence_penalty": "In [-2, 2], over the output.",
    "frequency_penalty": "In [-2, 2], over the output.",
    "repetition_penalty": "Above 0, over prompt and output.",
    "temperature": "0 is greedy; any finite positive number is honoured as given.",
    "top_p": "In (0, 1].",
    "top_k": "1 or more; 0 and -1 are off.",
    "min_p": "In [0, 1]; 0 is off.",
    "seed": "0 to 2**64 - 1; a fresh one, which is printed, if left out.",
    "stop": "A text that ends the output, taken literally; may be repeated.",
    "stop_token_ids": "Ids that end the output: 1,2 or repeated.",
    "ignore_eos": "EOS does not end the output.",
    "max_tokens": f"At most so many tokens; none goes on to the model's length. [default: {DEFAULT_MAX_TOKENS}]",
    "min_tokens": "Nothing ends the output before so many tokens.",
    "logprobs": "With --json: so many most likely tokens beside each token; -1 for all.",
    "prompt_logprobs": "With --json: the same for the prompt's tokens.",
    "detokenize": "Make text; without it only --json shows the ids.",
    "skip_special_tokens": "Leave special tokens out of the text.",
    "include_stop_str_in_output": "Keep the stop text in the text.",
    "logit_bias": "Added to an id's logit, in [-100, 100], -inf bans it: 42:-1.5,7:2 or repeated.",
    "allowed_token_ids": "Only these ids may be sampled: 1,2 or repeated.",
    "bad_words": "A text that may not appear; may be repeated.",
    "typical_p": "In (0, 1]: keeps the surprises closest to the entropy.",
    "top_n_sigma": "Keeps logits within so many standard deviations of the largest; 0 and -1 are off.",
    "epsilon_cutoff": "In [0, 1): drops probabilities below it; 0 is off.",
    "eta_cutoff": "In [0, 1): the same, lower where the entropy is high; 0 is off.",
    "xtc_probability": "In [0, 1]: how often the top choices are excluded; 0 is off.",
    "xtc_threshold": "In [0, 0.5]: what counts as a top choice.",
    "dry_multiplier": "Penalises tokens that extend a repetition; 0 is off.",
    "dry_base": "1 or more: what each further repeated token multiplies the penalty by.",
    "dry_allowed_length": "Repetitions of fewer tokens are free.",
    "dry_penalty_last_n": "How many last tokens count; -1 is all, 0 is off.",
    "dry_sequence_breakers": "A text that ends a repetition; may be repeated; none for no such text.",
    "mirostat": "0 (off), 1 or 2: keeps the surprise near --mirostat-tau.",
    "mirostat_tau": "Target surprise, in bits.",
    "mirostat_eta": "Learning rate.",
    "dynatemp_range": "The temperature moves by so much with the entropy; 0 is off.",
    "dynatemp_exponent": "How it moves.",
    "no_repeat_ngram_size": "No n-gram of so many tokens appears twice; 0 is off.",
}

Function = TypeVar("Function", bound=Callable[..., Any])


def sampling_flags(function: Function) -> Function:
    """Adds a flag for every field, in the dataclass's order. Left out, a flag's value is None or ()."""
    hints = get_type_hints(SamplingParams)
    function = structured_flags(function)
    for field in reversed(_flagged()):
        function = _flag(field, hints[field.name])(function)
    return function


def sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """SamplingParams from flags' values. Raises ParameterError."""
    return SamplingParams(**{"max_tokens": DEFAULT_MAX_TOKENS, **given_fields(given)})


def given_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams that flags set. Raises ParameterError."""
    values: dict[str, Any] = {}
    for field in _flagged():
        value = given[field.name]
        if value is None or value == ():
            continue
        if value is Given.NONE:
            value = None
        elif field.name == "logit_bias":
            value = to_biases(value)
        elif field.name in ("stop_token_ids", "allowed_token_ids"):
            value = to_ids(value)
        elif field.name == "dry_sequence_breakers" and value == ("none",):
            value = ()
        values[field.name] = value
    structured = given_structured(given)
    return values if structured is None else {**values, "structured_outputs": structured}


def _flagged() -> list[Field[Any]]:
    """The fields that a flag can set: vLLM's, then the samplers beyond them."""
    others = {field.name for field in fields(SamplerFields)}
    chosen = [field for field in fields(SamplingParams) if field.name not in NO_FLAG]
    return sorted(chosen, key=lambda field: field.name in others)


def flag_of(field_name: str) -> str:
    """--top-p for top_p."""
    return "--" + field_name.replace("_", "-")


def _flag(field: Field[Any], hint: Any) -> Callable[[Function], Function]:
    flag = flag_of(field.name)
    names = [flag, *ALIASES.get(field.name, ())]
    text = HELP.get(field.name, "") + _default(field)
    kind, takes_none = _without_none(hint)
    origin = get_origin(kind)
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", default=None, help=text)
    if kind in (int, float):
        return click.option(*names, type=Number(kind, none_too=takes_none), default=None, help=text)
    if origin is not None and issubclass(origin, Sequence):
        (item,) = get_args(kind)
        metavar, value_type = ("IDS", click.STRING) if item is int else ("TEXT", Lines())
        return click.option(*names, multiple=True, type=value_type, metavar=metavar, help=text)
    if origin is not None and issubclass(origin, Mapping):
        return click.option(*names, multiple=True, metavar="ID:VALUE", help=text)
    raise TypeError(f"SamplingParams.{field.name}: no flag is known for the type {hint}")


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    if len(kinds) != 1:
        raise TypeError(f"no flag is known for the type {hint}")
    return kinds[0], len(kinds) < len(get_args(hint))


def _default(field: Field[Any]) -> str:
    if field.name == "max_tokens" or field.default in (MISSING, None, ()):
        return ""
    value = {True: "on", False: "off"}[field.default] if isinstance(field.default, bool) else field.default
    return f" [default: {value}]"
