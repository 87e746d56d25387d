"""Types of flags' values. Text that is no number is passed on as it is: the dataclass that checks the value says
what is allowed, in the same words as from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import click

from draftproof.errors import ParameterError

NumberT = TypeVar("NumberT", int, float)

# Generic in newer releases of click only.
if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType


class Given(Enum):
    """NONE: the word "none" was given, where None is a value of its own and not "flag left out"."""

    NONE = "none"


class Number(_ParamType):
    """An int or a float. none_too: the word "none" is a value."""

    def __init__(self, kind: Callable[[str], int | float], *, none_too: bool = False) -> None:
        self.kind, self.none_too = kind, none_too
        self.name = "integer" if kind is int else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.none_too and value.lower() == Given.NONE.value:
            return Given.NONE
        return to_number(value, self.kind)


class Lines(_ParamType):
    """A text of a flag that may be repeated; in an environment variable, one text a line."""

    name = "text"
    envvar_list_splitter = "\n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


def to_number(text: str, kind: Callable[[str], int | float]) -> int | float | str:
    """The number, or the text itself if it is none."""
    try:
        return kind(text)
    except ValueError:
        return text


def to_ids(texts: Iterable[str]) -> list[int | float | str]:
    """Ids, given one by one or with commas between them."""
    return [to_number(part, int) for text in texts for part in text.split(",")]


def to_biases(texts: Iterable[str]) -> dict[int, float]:
    """ID:VALUE texts, given one by one or with commas between them. Raises ParameterError."""
    biases: dict[int, float] = {}
    for text in (part for joined in texts for part in joined.split(",")):
        id_text, _, value_text = text.partition(":")
        token_id, bias = to_number(id_text, int), to_number(value_text, float)
        if not isinstance(token_id, int) or isinstance(bias, str):
            raise ParameterError("logit_bias", text, "ID:VALUE, a token id and a number in [-100, 100] or -inf")
        if token_id in biases:
            raise ParameterError("logit_bias", text, "given once for each token id")
        biases[token_id] = bias
    return biases


def numbers(given: Mapping[str, Any], name: str, kind: Callable[[str], NumberT]) -> list[NumberT]:
    """The numbers of an option that takes several, with commas between them. Raises ParameterError."""
    try:
        return [kind(part) for part in given[name].split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ParameterError(name, given[name], f"{what} with commas between them") from None


def words(given: Mapping[str, Any], name: str, allowed: Sequence[str]) -> list[str]:
    """The words of an option that takes several, with commas between them. Raises ParameterError."""
    found = [word for word in given[name].split(",") if word]
    for word in found:
        if word not in allowed:
            raise ParameterError(name, word, f"of {', '.join(allowed)}")
    return found
