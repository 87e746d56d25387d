"""Checks of single values, for SamplingParams: each returns the value in its own type or raises a ParameterError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from draftproof.errors import ParameterError


def checked_real(name: str, value: object, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """A finite number in [low, high]; above: low itself is out."""
    edge = "(" if above else "["
    allowed = f"a number in {edge}{low:g}, {high:g}]" if high < math.inf else f"a finite number in {edge}{low:g}, inf)"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(name, value, allowed, f"got a {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high or (above and number == low):
        raise ParameterError(name, value, allowed)
    return number


def checked_integer(name: str, value: object, low: int, *, or_none: str = "") -> int:
    """An integer of `low` or more. or_none: what None would mean, for the message."""
    allowed = f"an integer of {low} or more" + (f", or None {or_none}" if or_none else "")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(name, value, allowed, f"got a {type(value).__name__}")
    if int(value) < low:
        raise ParameterError(name, value, allowed)
    return int(value)


def checked_top_k(value: object) -> int:
    """An integer of -1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < -1:
        raise ParameterError("top_k", value, "an integer of 1 or more, or 0 or -1 to keep every token")
    return int(value)


def checked_seed(value: object) -> int:
    """An integer of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**64:
        raise ParameterError("seed", value, "an integer in [0, 2**64)", "leave it unset for a fresh seed")
    return int(value)


def checked_strings(name: str, value: object) -> tuple[str, ...]:
    """Strings of at least one character, each once, in order; None is none of them."""
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


def checked_token_ids(name: str, value: object) -> tuple[int, ...]:
    """Ids of 0 or more, each once, in order; None is none of them."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ParameterError(name, value, "a list of token ids")
    return tuple(dict.fromkeys(checked_integer(name, item, 0) for item in value))


def checked_bias(value: object) -> dict[int, float] | None:
    """{token id: number in [-100, 100] or -inf}; ids may come as decimal text, as in JSON."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ParameterError("logit_bias", value, "a mapping from token id to a number")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token_id = checked_integer("logit_bias", int(key) if isinstance(key, str) and key.isdecimal() else key, 0)
        number = math.nan if isinstance(bias, bool) or not isinstance(bias, Real) else float(bias)
        if not (-100.0 <= number <= 100.0 or number == -math.inf):
            raise ParameterError("logit_bias", {key: bias}, "a number in [-100, 100], or -inf to ban the token")
        if token_id in biases:
            raise ParameterError("logit_bias", key, "given once for each token id")
        biases[token_id] = number
    return biases
