"""Mistral's dialect: [TOOL_CALLS], a special token, then the calls up to the end of the answer.

    [TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]
    [TOOL_CALLS]name[ARGS]{…}                 one marker for each call
    [TOOL_CALLS]name[CALL_ID]id[ARGS]{…}
    [TOOL_CALLS]name{…}

Source: mistral-common's tokenizers v3, v7, v11 and v13, and the chat templates that follow them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from draftproof.chat.message import ToolCall
from draftproof.chat.tools.base import MalformedCallError, ToolDialect, as_json, call_of, first_json_of

_MARKER: Final = "[TOOL_CALLS]"
_NAMED: Final = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w-]+)\s*)?(?:\[ARGS\])?\s*(?=\{)")


class Mistral(ToolDialect):
    """See the module."""

    name: ClassVar[str] = "mistral"
    begin: ClassVar[tuple[str, ...]] = (_MARKER,)
    end: ClassVar[str | None] = None
    keeps_markers: ClassVar[bool] = True

    def is_written_by(self, template: str) -> bool:
        return _MARKER in template

    def calls_of(self, body: str) -> list[ToolCall]:
        rest = body.strip()
        if rest.startswith("["):
            values, rest = first_json_of(rest)
            if rest.strip() or not isinstance(values, list) or not values:
                raise MalformedCallError("it is no list of calls and nothing else")
            return [call_of(value) for value in values]
        calls: list[ToolCall] = []
        while rest:
            named = _NAMED.match(rest)
            if named is None:
                raise MalformedCallError("it is neither a list of calls nor a name with arguments")
            arguments, rest = first_json_of(rest[named.end() :])
            if not isinstance(arguments, Mapping):
                raise MalformedCallError(f"the arguments of {named[1]!r} are no JSON object")
            calls.append(ToolCall(named[1], as_json(arguments), named[2]))
            rest = rest.strip().removeprefix(_MARKER)
        if not calls:
            raise MalformedCallError("it is empty")
        return calls
