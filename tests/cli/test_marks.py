"""Which tokens came from drafts, with colour and without, whatever the engine holds back."""

from collections.abc import Sequence

import pytest

from draftproof.cli.marks import BRACKETS, COLOUR, MarkedText
from draftproof.cli.output import wants_colour
from draftproof.engine.detokenize import IncrementalDetokenizer

WORDS = [b"one", b" two", b" three", b" four", "é".encode()[:1], "é".encode()[1:]]


class Words:
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return b"".join(WORDS[token_id] for token_id in token_ids).decode("utf-8", errors="replace")


def marked(style: object = BRACKETS) -> MarkedText:
    return MarkedText(IncrementalDetokenizer(Words(), [0]), style)  # type: ignore[arg-type]


def test_runs_of_one_outcome_stand_in_one_pair_of_brackets() -> None:
    text = marked()
    for token_id, outcome in ((0, "bonus"), (1, "accepted"), (2, "accepted"), (3, "recovered")):
        text.push(token_id, outcome)
    assert text.show("one two three four") + text.close() == "one[ two three]{ four}"


def test_a_run_goes_on_over_pieces() -> None:
    text = marked()
    text.push(0, "accepted")
    first = text.show("one")
    text.push(1, "accepted")
    assert first + text.show(" two") + text.close() == "[one two]"


def test_what_the_engine_holds_back_is_not_shown() -> None:
    text = marked()
    text.push(0, "accepted")
    text.push(1, "bonus")
    assert text.show("one t") == "[one] t"
    assert text.show("wo") + text.close() == "wo"


def test_a_character_of_two_tokens_belongs_to_the_one_that_completes_it() -> None:
    text = marked()
    text.push(4, "bonus")
    assert text.show("") == ""
    text.push(5, "accepted")
    assert text.show("é") + text.close() == "[é]"


def test_what_no_token_accounts_for_is_plain() -> None:
    text = marked()
    text.push(0, "accepted")
    assert text.show("one?") + text.close() == "[one]?"


def test_colours() -> None:
    text = marked(COLOUR)
    text.push(0, "accepted")
    text.push(1, "recovered")
    assert text.show("one two") + text.close() == "\x1b[32mone\x1b[0m\x1b[33m two\x1b[0m"


class Stream:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_where_there_is_colour(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, variables: dict[str, str], expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wants_colour(Stream(is_terminal)) is expected  # type: ignore[arg-type]
