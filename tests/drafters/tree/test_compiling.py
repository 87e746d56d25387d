"""What is said while something is compiled: on a terminal, and where it takes its time."""

import io
import sys
import time

import pytest

from draftproof.drafters.tree import compiling


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "moment", "said"), [(True, 0.01, True), (True, 30.0, False), (False, 0.01, False)]
)
def test_it_is_told_on_a_terminal_after_a_moment(monkeypatch, is_terminal, moment, said) -> None:
    stream = Stream(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(compiling, "MOMENT", moment)
    with compiling.compiling("trees"):
        until = time.monotonic() + 20
        while said and not stream.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert stream.getvalue() == ("compiling trees, once on a machine ...\n" if said else "")


def test_nothing_is_told_afterwards_or_of_what_fails(monkeypatch) -> None:
    stream = Stream(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(compiling, "MOMENT", 0.2)
    with pytest.raises(ValueError, match="none"), compiling.compiling("trees"):
        raise ValueError("none")
    time.sleep(0.4)
    assert stream.getvalue() == ""
