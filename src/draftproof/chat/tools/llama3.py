"""Llama 3's dialect: an answer that is a JSON call and nothing else, {"name": …, "parameters": {…}}.

<|python_tag|> may stand before it, and several calls are separated by ";". The other form that Llama 3.1 writes for
tools of one's own, <function=name>{…}</function>, is read too. What follows the tag and is no such call (code for the
built-in interpreter) is content.
Source: the chat templates of Llama 3.1 to 3.3 and Meta's description of their prompt format.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

from draftproof.chat.message import ToolCall
from draftproof.chat.tools.base import MalformedCallError, ToolDialect, as_json, call_of, first_json_of, json_of

_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
_OPENING: Final = "<function="


class Llama3(ToolDialect):
    """See the module."""

    name: ClassVar[str] = "llama3_json"
    begin: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    end: ClassVar[str | None] = None
    keeps_markers: ClassVar[bool] = True

    def is_written_by(self, template: str) -> bool:
        return "<|python_tag|>" in template or ('"parameters": dictionary of argument name' in template)

    def may_open_answer(self, text: str) -> bool:
        return text.startswith("{") or text.startswith(_OPENING) or _OPENING.startswith(text)

    def calls_of(self, body: str) -> list[ToolCall]:
        calls: list[ToolCall] = []
        rest = body.strip()
        while rest:
            function = _FUNCTION.match(rest)
            if function is not None:
                arguments = json_of(function[2].strip() or "{}")
                if not isinstance(arguments, dict):
                    raise MalformedCallError(f"the arguments of {function[1]!r} are no JSON object")
                calls.append(ToolCall(function[1].strip(), as_json(arguments)))
                rest = rest[function.end() :]
            else:
                value, rest = first_json_of(rest)
                calls.append(call_of(value, arguments_keys=("parameters", "arguments")))
            rest = rest.lstrip().removeprefix(";").lstrip()
        if not calls:
            raise MalformedCallError("it is empty")
        return calls
