"""Which `pattern`s of a JSON schema xgrammar honours: the others are refused, since it would allow other texts, too.

Its automaton for patterns merges states that it should keep apart: `1(\\.[0-9]+)?3` allows 123, and `[ab]{1,2}|[ab]`
allows aaa (xgrammar 0.2.8; its regexes outside of JSON are right). Never wrong in tests/grammar/test_patterns.py are
quantifiers of single characters and classes, and groups whose alternatives and repetitions hold no variable length.
"""

from __future__ import annotations

import re
from typing import Final

_UNESCAPED: Final = re.compile(r'"|\\\\|\\x(22|5c)|\\u(\{0*|00)(22|5c)', re.IGNORECASE)
_TOKEN: Final = re.compile(
    r"(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<fixed>\{(?P<least>\d+)(?:,(?P=least))?\})|(?P<variable>[?*+]|\{\d*,\d*\})|(?P<other>.)",
    re.DOTALL,
)
_OTHER: Final = "write it without, or set backend='llguidance'"


def objection(pattern: str) -> tuple[str, str] | None:
    """What xgrammar would get wrong in a schema's `pattern`, and what to do instead; None if nothing."""
    if not (pattern.startswith("^") and re.search(r"(?<!\\)(\\\\)*\$$", pattern)):
        hint = "write it from ^ to $, or set backend='llguidance'"
        return f"{pattern!r} could match in the middle of a string, which xgrammar lacks", hint
    if _UNESCAPED.search(pattern):
        return "has a quote or a backslash to match, which xgrammar would not escape", _OTHER
    if _merges(pattern):
        return "has a length that varies within alternatives or a repeated group, where xgrammar is wrong", _OTHER
    return None


def _merges(pattern: str) -> bool:
    """Whether a variable length lies within alternatives, or within a group that has a quantifier."""
    frames = [_Frame()]
    last: _Frame | None = None
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup if token.lastgroup != "least" else "fixed"
        if kind in ("fixed", "variable"):
            if last is not None and last.varies:
                return True
            frames[-1].varies |= kind == "variable"
            continue
        last = None
        if kind == "open":
            frames.append(_Frame())
        elif kind == "or":
            frames[-1].branches = True
        elif kind == "close" and len(frames) > 1:
            last = frames.pop()
            if last.branches and last.varies:
                return True
            frames[-1].varies |= last.varies
    return frames[0].branches and frames[0].varies


class _Frame:
    """A group that is being read: has it alternatives, and can the length of a part of it vary?"""

    __slots__ = ("branches", "varies")

    def __init__(self) -> None:
        self.branches = self.varies = False
