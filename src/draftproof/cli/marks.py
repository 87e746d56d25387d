"""Shows in a text which tokens came from a draft: by colour, or by brackets where there is none.

The engine lets text go run by run and holds back what a stop string may still take away, so tokens are decoded here
once more, one by one, and as many characters are shown as the engine has let go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from draftproof.engine.detokenize import IncrementalDetokenizer

ACCEPTED: Final = "accepted"
RECOVERED: Final = "recovered"


@dataclass(frozen=True, slots=True)
class Style:
    """What stands before and after a run of tokens of one outcome; outcomes that are not named are plain."""

    around: dict[str, tuple[str, str]]
    legend: str


COLOUR: Final = Style(
    {ACCEPTED: ("\x1b[32m", "\x1b[0m"), RECOVERED: ("\x1b[33m", "\x1b[0m")},
    "\x1b[32maccepted drafts\x1b[0m, \x1b[33mrecovered tokens\x1b[0m, bonus tokens and undrafted ones plain",
)
BRACKETS: Final = Style(
    {ACCEPTED: ("[", "]"), RECOVERED: ("{", "}")},
    "[accepted drafts], {recovered tokens}, bonus tokens and undrafted ones plain",
)


class MarkedText:
    """Turns tokens and the text that the engine lets go into marked text."""

    def __init__(self, detokenizer: IncrementalDetokenizer, style: Style) -> None:
        self._detokenizer, self._style = detokenizer, style
        self._waiting: deque[tuple[str, str | None]] = deque()
        self._open: str | None = None

    def push(self, token_id: int, outcome: str | None) -> None:
        """Takes one committed token."""
        text = self._detokenizer.push(token_id)
        if text:
            self._waiting.append((text, outcome))

    def show(self, released: str) -> str:
        """`released` with marks. What no decoded token accounts for (the rest of a broken character) is plain."""
        shown = ""
        while released:
            text, outcome = self._waiting.popleft() if self._waiting else (released, None)
            if len(text) > len(released):
                self._waiting.appendleft((text[len(released) :], outcome))
            piece, released = released[: len(text)], released[len(text) :]
            shown += self._switch(outcome) + piece
        return shown

    def close(self) -> str:
        """The mark that ends the last run, if one is open."""
        return self._switch(None)

    def _switch(self, outcome: str | None) -> str:
        kind = outcome if outcome in self._style.around else None
        if kind == self._open:
            return ""
        before, self._open = self._open, kind
        closing = self._style.around[before][1] if before else ""
        return closing + (self._style.around[kind][0] if kind else "")
