"""What a model's answer to a chat holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for. arguments: a JSON object, as text. id: the model's own, if it wrote one."""

    name: str
    arguments: str
    id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's API writes it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """The assistant's message, read from its text.

    content: what is meant for the reader. reasoning_content: what stood between reasoning markers, None without any.
    warnings: what looked like a tool call and was none; its text is in content, whole.
    """

    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    warnings: tuple[str, ...] = ()
    role: str = "assistant"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; ready to be the next turn's message."""
        plain: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            plain["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            plain["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        if self.warnings:
            plain["warnings"] = list(self.warnings)
        return plain


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed answer; only one of the fields is set, or a warning beside content."""

    content: str = ""
    reasoning_content: str = ""
    tool_call: ToolCall | None = None
    warning: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as plain values."""
        return {name: value for name, value in asdict(self).items() if value}
