"""Qwen3's dialects: the JSON of Hermes, and the tags of Qwen3-Coder and later, both between <tool_call> markers.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A parameter's value is JSON if it reads as JSON other than a string, and text otherwise: the model writes texts
without quotes. One line's end is taken off at either side of a value.
Source: the chat templates of Qwen3 and Qwen3-Coder.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

from draftproof.chat.message import ToolCall
from draftproof.chat.tools.base import MalformedCallError, as_json, call_of, json_of
from draftproof.chat.tools.hermes import Hermes

_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>\s*", re.DOTALL)


class Qwen3(Hermes):
    """See the module."""

    name: ClassVar[str] = "qwen3"

    def is_written_by(self, template: str) -> bool:
        return "<function=" in template and super().is_written_by(template)

    def calls_of(self, body: str) -> list[ToolCall]:
        if not body.lstrip().startswith("<function="):
            return [call_of(json_of(body.strip()))]
        function = _FUNCTION.fullmatch(body)
        if function is None:
            raise MalformedCallError("its <function=…> is not closed")
        arguments: dict[str, Any] = {}
        at, parameters = 0, function[2].strip()
        while at < len(parameters):
            parameter = _PARAMETER.match(parameters, at)
            if parameter is None:
                raise MalformedCallError("there is something other than parameters between its tags")
            arguments[parameter[1].strip()] = _value_of(parameter[2].removeprefix("\n").removesuffix("\n"))
            at = parameter.end()
        return [ToolCall(function[1].strip(), as_json(arguments))]


def _value_of(text: str) -> Any:
    try:
        value = json_of(text)
    except MalformedCallError:
        return text
    return text if isinstance(value, str) else value
