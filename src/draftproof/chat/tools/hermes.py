"""Hermes' dialect, also Qwen2.5's and Qwen3's: <tool_call>{"name": …, "arguments": {…}}</tool_call>, one for each call.

Source: NousResearch's Hermes-Function-Calling; the chat template of Qwen2.5.
"""

from __future__ import annotations

from typing import ClassVar

from draftproof.chat.message import ToolCall
from draftproof.chat.tools.base import ToolDialect, call_of, json_of


class Hermes(ToolDialect):
    """See the module."""

    name: ClassVar[str] = "hermes"
    begin: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    end: ClassVar[str | None] = "</tool_call>"

    def is_written_by(self, template: str) -> bool:
        return "<tool_call>" in template

    def calls_of(self, body: str) -> list[ToolCall]:
        return [call_of(json_of(body.strip()))]
