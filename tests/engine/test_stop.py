"""T36 to T39: stop rules run token by token inside an accepted run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.engine.detokenize import IncrementalDetokenizer
from draftproof.engine.stop import Stop, StopRules
from draftproof.params import SamplingParams
from tests.engine.letters import Letters, Utf8Bytes

EOS = 0
TEXTS = ["<eos>", "xa", "b!", "c", "ab", "d", " "]


def rules(tokenizer=None, positions=1000, **params):
    tokenizer = tokenizer or Letters(TEXTS, specials=[EOS])
    detokenizer = IncrementalDetokenizer(tokenizer, [5, 5])
    return StopRules(SamplingParams(**{"max_tokens": None, **params}), (EOS,), positions, detokenizer)


def run(rule, token_ids, num_before=0):
    """(tokens taken, the Stop or None)."""
    for taken, token_id in enumerate(token_ids, 1):
        stop = rule.push(token_id, num_before + taken)
        if stop is not None:
            return taken, stop
    return len(token_ids), None


def test_t36_eos_inside_a_run_ends_it():
    rule = rules()
    assert run(rule, [1, EOS, 3, 3]) == (2, Stop("stop"))
    assert rule.text == "xa"


def test_t37_stop_before_the_limit_is_a_stop_and_beyond_it_is_a_length():
    assert run(rules(max_tokens=10), [EOS, 1, 1], num_before=8) == (1, Stop("stop"))
    assert run(rules(max_tokens=10), [1, EOS], num_before=9) == (1, Stop("length"))
    assert run(rules(max_tokens=10), [EOS], num_before=9) == (1, Stop("stop"))


def test_t39_stop_string_across_tokens_cuts_inside_the_second():
    rule = rules(stop="ab")
    assert run(rule, [1, 2, 3]) == (2, Stop("stop", "ab"))
    assert rule.text == "x"
    rule = rules(stop="ab", include_stop_str_in_output=True)
    assert run(rule, [1, 2, 3]) == (2, Stop("stop", "ab"))
    assert rule.text == "xab"


def test_stop_token_ids_stop_and_stay_out_of_the_text():
    rule = rules(stop_token_ids=[3])
    assert run(rule, [1, 3, 1]) == (2, Stop("stop", 3))
    assert rule.text == "xa"
    shown = rules(stop_token_ids=[3], include_stop_str_in_output=True)
    run(shown, [1, 3, 1])
    assert shown.text == "xac"


def test_ignore_eos_goes_on_and_the_length_ends_it():
    assert run(rules(ignore_eos=True, max_tokens=4), [EOS] * 9) == (4, Stop("length"))


def test_the_model_length_ends_a_request_without_max_tokens():
    assert run(rules(positions=2), [5, 5, 5]) == (2, Stop("length"))


def test_stop_strings_wait_for_min_tokens():
    assert run(rules(stop="ab", min_tokens=3), [4, 5, 5, 4, 5]) == (4, Stop("stop", "ab"))
    assert run(rules(stop_token_ids=[5], min_tokens=2), [5, 5, 5]) == (3, Stop("stop", 5))
    assert run(rules(min_tokens=2), [EOS, EOS, EOS]) == (3, Stop("stop"))


def test_the_earliest_stop_string_wins_and_the_longest_of_those_that_begin_together():
    rule = rules(stop=["b!", "a"])
    assert run(rule, [1, 2]) == (1, Stop("stop", "a"))
    rule = rules(stop=["ab", "abd"])
    assert run(rule, [4]) == (1, Stop("stop", "ab"))


def test_a_stream_never_shows_what_a_stop_string_takes_back():
    rule = rules(stop="ab!d")
    shown = ""
    for count, token_id in enumerate([1, 2, 5], 1):
        rule.push(token_id, count)
        shown += rule.take(final=False)
    assert shown == "x" and rule.text == "x"


@given(
    token_ids=st.lists(st.integers(1, 6), max_size=30),
    stops=st.lists(st.text("abcdx! ", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
)
def test_streamed_text_is_a_prefix_of_the_text_and_ends_as_it(token_ids, stops):
    rule = rules(stop=stops)
    shown, stop = "", None
    for count, token_id in enumerate(token_ids, 1):
        stop = rule.push(token_id, count)
        shown += rule.take(final=False)
        if stop:
            break
    whole = "".join(TEXTS[i] for i in token_ids)
    first = min((whole.find(s) for s in stops if s in whole), default=-1)
    assert (stop is not None) == (first >= 0)
    assert shown + rule.take(final=True) == rule.text == (whole[:first] if stop else whole)


@given(text=st.text(max_size=40), cut=st.integers(0, 5))
def test_characters_are_never_split(text, cut):
    tokens = list(text.encode())
    detokenizer = IncrementalDetokenizer(Utf8Bytes(), list("é".encode()))
    pieces = [detokenizer.push(token) for token in tokens]
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces) or "�" in text


@given(st.binary(max_size=40))
def test_every_byte_string_comes_out_whole_after_a_flush(data):
    detokenizer = IncrementalDetokenizer(Utf8Bytes(), [])
    text = "".join(detokenizer.push(byte) for byte in data) + detokenizer.flush()
    assert text == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("held", ["é".encode()[:1]])
def test_an_incomplete_character_at_the_end_is_flushed(held):
    rule = rules(tokenizer=Utf8Bytes(), max_tokens=2)
    run(rule, [ord("a"), held[0]])
    assert rule.text == "a�"
