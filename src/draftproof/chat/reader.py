"""Reads an answer as its text comes: reasoning, content and tool calls, and never half a marker.

Rule: the text is in one section at a time (reasoning, content, a call). A section is left at its marker. Of a section's
text, what could be the beginning of a marker is held back until it is decided. A call is given out whole when it has
ended; what is no call is given out as content, markers included, with a warning.

The whole text of an answer read at once gives what its pieces give, however it was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from draftproof.chat.message import ChatMessage, Delta
from draftproof.chat.tools import MalformedCallError, ToolDialect


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """begin, end: around the reasoning. is_open: the prompt has written `begin` already."""

    begin: str
    end: str
    is_open: bool = False


_WHITESPACE: Final = " \t\n\r\f\v"


class _Section(Enum):
    OPENING = "before any text"
    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "a tool call"


class AnswerReader:
    """Takes text in pieces and gives deltas. reasoning, dialect: None if the answer has no such markers.

    Newlines inside reasoning markers at either end, and whitespace beside a tool call, are dropped: they belong to
    the template.
    """

    def __init__(self, reasoning: ReasoningMarkers | None, dialect: ToolDialect | None) -> None:
        self._reasoning, self._dialect = reasoning, dialect
        opened = reasoning is not None and reasoning.is_open
        self._section = _Section.REASONING if opened else _Section.OPENING
        self._pending = ""
        self._dropping = "\n" if opened else ""  # characters that are dropped until another one comes
        self._has_content = False
        self._before_call = ""  # what stood before the call's body and is content if it is no call

    def push(self, text: str) -> list[Delta]:
        """What `text` completes."""
        self._pending += text
        deltas: list[Delta] = []
        while (step := self._next(final=False)) is not None:
            deltas += step
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back; the answer has ended."""
        deltas: list[Delta] = []
        while (step := self._next(final=True)) is not None:
            deltas += step
        return deltas

    def _next(self, *, final: bool) -> list[Delta] | None:
        """One step: the deltas of what can be decided now, None if that is nothing."""
        if self._section is _Section.CALL and self._dialect is not None:
            return self._read_call(self._dialect, final)
        if self._dropping:
            self._pending = self._pending.lstrip(self._dropping)
            self._dropping = "" if self._pending else self._dropping
        if not self._pending:
            return None
        if self._section is _Section.REASONING and self._reasoning is not None:
            return self._read_reasoning(self._reasoning, final)
        if self._section is _Section.OPENING:
            return self._read_opening(final)
        return self._read_content(final)

    def _read_opening(self, final: bool) -> list[Delta] | None:
        """Whether the answer begins with reasoning. Whitespace before the marker belongs to it."""
        if self._reasoning is not None:
            begin, text = self._reasoning.begin, self._pending.lstrip()
            if text.startswith(begin):
                self._pending, self._dropping = text[len(begin) :], "\n"
                self._section = _Section.REASONING
                return []
            if begin.startswith(text) and not final:
                return None
        self._section = _Section.CONTENT
        return []

    def _read_reasoning(self, markers: ReasoningMarkers, final: bool) -> list[Delta] | None:
        text = self._pending
        at = text.find(markers.end)
        if at >= 0:
            self._pending, self._dropping = text[at + len(markers.end) :], "\n"
            self._section = _Section.CONTENT
            return _reasoning(text[:at].rstrip("\n"))
        shown = text[: len(text) - (0 if final else _num_held(text, (markers.end,)))].rstrip("\n")
        self._pending = "" if final else text[len(shown) :]
        return _reasoning(shown) if shown else None

    def _read_content(self, final: bool) -> list[Delta] | None:
        text, dialect = self._pending, self._dialect
        if dialect is None:
            self._pending = ""
            return self._content(text)
        if not self._has_content:
            opening = text.lstrip()
            if not opening and not final:
                return None
            if opening and dialect.may_open_answer(opening):
                # It may be a call without a marker: that is known at the answer's end.
                return self._enter_call(text[: len(text) - len(opening)], opening) if final else None
        found = min(((at, marker) for marker in dialect.begin if (at := text.find(marker)) >= 0), default=None)
        if found is not None:
            at, marker = found
            content = text[:at].rstrip()
            self._enter_call(text[len(content) : at] + marker, text[at + len(marker) :])
            return self._content(content)
        if final:
            self._pending = ""
            return self._content(text)
        shown = text[: len(text) - _num_held(text, dialect.begin)].rstrip()
        self._pending = text[len(shown) :]
        return self._content(shown) if shown else None

    def _enter_call(self, before: str, body: str) -> list[Delta]:
        self._section, self._before_call, self._pending = _Section.CALL, before, body
        return []

    def _read_call(self, dialect: ToolDialect, final: bool) -> list[Delta] | None:
        text, end = self._pending, dialect.end
        at = text.find(end) if end is not None else -1
        if at < 0 and not final:
            return None
        body, self._pending = (text[:at], text[at + len(end or "") :]) if at >= 0 else (text, "")
        self._section = _Section.CONTENT
        try:
            if at < 0 and end is not None:
                raise MalformedCallError(f"the answer ended before {end}")
            calls = dialect.calls_of(body)
        except MalformedCallError as error:
            self._has_content = True
            raw = self._before_call + body + (end or "" if at >= 0 else "")
            return [Delta(content=raw, warning=f"this is no tool call of {dialect.name}: {error}")]
        self._dropping = _WHITESPACE
        return [Delta(tool_call=call) for call in calls]

    def _content(self, text: str) -> list[Delta]:
        self._has_content = self._has_content or bool(text.strip())
        return [Delta(content=text)] if text else []


def read_answer(text: str, reasoning: ReasoningMarkers | None, dialect: ToolDialect | None) -> ChatMessage:
    """The message of a whole answer."""
    reader = AnswerReader(reasoning, dialect)
    return message_of([*reader.push(text), *reader.finish()])


def message_of(deltas: Sequence[Delta]) -> ChatMessage:
    """The message that deltas add up to."""
    return ChatMessage(
        content="".join(delta.content for delta in deltas),
        reasoning_content="".join(delta.reasoning_content for delta in deltas) or None,
        tool_calls=tuple(delta.tool_call for delta in deltas if delta.tool_call is not None),
        warnings=tuple(delta.warning for delta in deltas if delta.warning),
    )


def _reasoning(text: str) -> list[Delta]:
    return [Delta(reasoning_content=text)] if text else []


def _num_held(text: str, markers: Sequence[str]) -> int:
    """How many of the last characters could be the beginning of a marker."""
    longest = max((len(marker) for marker in markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0
