"""Flags for the field structured_outputs: one for each kind of grammar, and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from draftproof.cli.values import Lines
from draftproof.errors import ParameterError
from draftproof.structured import BACKENDS, StructuredOutputsParams

Function = TypeVar("Function", bound=Callable[..., Any])

_FILE_HINT: Final = "; @FILE reads it from a file."
_FIELDS: Final[Mapping[str, str]] = {
    "json_schema": "json",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
    "disable_any_whitespace": "disable_any_whitespace",
    "whitespace_pattern": "whitespace_pattern",
    "structured_backend": "backend",
    "start_after": "start_after",
}
"""Flag's name -> field of StructuredOutputsParams."""
_FROM_FILES: Final = ("json_schema", "grammar", "structural_tag")

_OPTIONS: Final = (
    click.option("--json-schema", metavar="SCHEMA", help="The output is a document of this JSON schema" + _FILE_HINT),
    click.option("--json-object", is_flag=True, default=None, help="The output is a JSON object."),
    click.option("--regex", metavar="REGEX", help="The whole output matches it."),
    click.option("--choice", multiple=True, type=Lines(), metavar="TEXT",
                 help="The output is this text; repeat it for others that it may be."),
    click.option("--grammar", metavar="GRAMMAR",
                 help="GBNF with a rule `root ::=`, or Lark with a rule `start:`" + _FILE_HINT),
    click.option("--structural-tag", metavar="JSON", help="xgrammar's structural tag" + _FILE_HINT),
    click.option("--disable-any-whitespace", is_flag=True, default=None, help="JSON in one line, with ', ' and ': '."),
    click.option("--whitespace-pattern", metavar="REGEX",
                 help="What may stand between JSON's elements; with --structured-backend llguidance."),
    click.option("--structured-backend", metavar="{" + ",".join(BACKENDS) + "}",
                 help="The grammar library; both are in the extra `structured`. [default: xgrammar]"),
    click.option("--start-after", metavar="TEXT", help="The grammar begins after this text; before it all is free."),
)  # fmt: skip


def structured_flags(function: Function) -> Function:
    """Adds the flags. Left out, a flag's value is None or ()."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given_structured(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """The field structured_outputs from flags' values; None if none was given. Raises ParameterError."""
    values: dict[str, Any] = {}
    for flag, name in _FIELDS.items():
        value = given.get(flag)
        if value not in (None, (), False):
            values[name] = _read(flag, value) if flag in _FROM_FILES else value
    return StructuredOutputsParams(**values) if values else None


def _read(flag: str, text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(flag, text, "a text, or @ and a file that can be read", str(error)) from error
