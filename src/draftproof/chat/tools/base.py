"""What a tool-call dialect is: where a call begins and ends in the text, and how its body is read."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from draftproof.chat.message import ToolCall


class MalformedCallError(ValueError):
    """The body is no call; the message says why. Its text is content then."""


class ToolDialect(ABC):
    """begin: markers that open a call. end: the marker that closes it, None if it goes to the end of the answer.

    keeps_markers: the markers are special tokens, so the text has to be made with them.
    """

    name: ClassVar[str]
    begin: ClassVar[tuple[str, ...]]
    end: ClassVar[str | None]
    keeps_markers: ClassVar[bool] = False

    @abstractmethod
    def is_written_by(self, template: str) -> bool:
        """Whether a chat template (its Jinja text) makes models write this dialect."""

    @abstractmethod
    def calls_of(self, body: str) -> list[ToolCall]:
        """The calls in the text between the markers. Raises MalformedCallError."""

    def may_open_answer(self, text: str) -> bool:
        """Whether an answer that begins with `text` may be a call without a marker."""
        return False


def call_of(value: Any, *, arguments_keys: tuple[str, ...] = ("arguments",)) -> ToolCall:
    """A call from {"name": …, "arguments": {…}}; an "id" is kept. Raises MalformedCallError."""
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str) or not value["name"]:
        raise MalformedCallError("it has no name")
    key = next((key for key in arguments_keys if key in value), None)
    arguments = value[key] if key is not None else {}
    if isinstance(arguments, str):
        arguments = json_of(arguments)
    if not isinstance(arguments, Mapping):
        raise MalformedCallError(f"the arguments of {value['name']!r} are no JSON object")
    call_id = value.get("id")
    return ToolCall(value["name"], as_json(arguments), call_id if isinstance(call_id, str) else None)


def as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def json_of(text: str) -> Any:
    """A JSON value. Raises MalformedCallError, also for the constants that JSON doesn't have."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"it is no JSON: {error}") from error


def first_json_of(text: str) -> tuple[Any, str]:
    """(the JSON value that `text` begins with, the rest of it). Raises MalformedCallError."""
    text = text.lstrip()
    try:
        value, end = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"it is no JSON: {error}") from error
    return value, text[end:]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
