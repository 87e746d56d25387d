"""Text comes out whole: no split character, nothing shown twice or taken back, a bounded cost per token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine.detokenize import IncrementalDetokenizer
from draftproof.engine.stop import StopRules
from draftproof.params import SamplingParams
from tests.engine.byte_tokenizers import Counting, byte_level, metaspace
from tests.engine.letters import Utf8Bytes

BYTE_IDS = st.lists(st.integers(0, 266), max_size=40)  # every byte, the pieces and both special tokens
PIECE_IDS = st.lists(st.integers(0, 267), max_size=40)


def pieces_of(tokenizer, token_ids, prompt_ids=(), **options):
    detokenizer = IncrementalDetokenizer(tokenizer, list(prompt_ids), **options)
    return [detokenizer.push(token_id) for token_id in token_ids], detokenizer.flush()


@settings(max_examples=120)
@given(token_ids=BYTE_IDS, skip=st.booleans())
def test_byte_level_text_is_what_the_tokenizer_decodes(token_ids, skip):
    """Whatever the bytes are: pieces that end inside a character each, invalid bytes, special tokens between them."""
    pieces, rest = pieces_of(byte_level(), token_ids, skip_special_tokens=skip)
    assert "".join(pieces) + rest == byte_level().decode(token_ids, skip_special_tokens=skip)


@settings(max_examples=80)
@given(text=st.text(max_size=30), data=st.data())
def test_no_character_is_split_however_the_text_is_cut_into_tokens(text, data):
    """U+FFFD is shown only if the text has it."""
    letters = {token: index for token, index in byte_level().get_vocab().items()}
    from tests.engine.byte_tokenizers import byte_letters

    written = "".join(byte_letters()[byte] for byte in text.encode())
    token_ids, at = [], 0
    while at < len(written):
        fits = [token for token in letters if written.startswith(token, at)]
        token = data.draw(st.sampled_from(sorted(fits)))
        token_ids.append(letters[token])
        at += len(token)
    pieces, rest = pieces_of(byte_level(), token_ids)
    assert "".join(pieces) + rest == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)
    shown = "".join(pieces)
    assert text.startswith(shown) and len(text) - len(shown) <= ("\ufffd" in text) * 3


@settings(max_examples=120)
@given(token_ids=PIECE_IDS)
def test_metaspace_text_is_what_the_tokenizer_decodes_where_bytes_are_valid(token_ids):
    tokenizer = metaspace()
    whole = tokenizer.decode([5, *token_ids], skip_special_tokens=True)
    pieces, rest = pieces_of(tokenizer, token_ids, [5])
    text = "a" + "".join(pieces) + rest
    if "\ufffd" not in whole:
        assert text == whole
    # An invalid byte makes U+FFFD of its whole run in the tokenizer; characters that were shown stay here.
    assert text.replace("\ufffd", "").startswith("a")


@given(text=st.text(alphabet="ab é叫🙂!", max_size=20))
def test_metaspace_with_byte_fallback_never_splits_a_character(text):
    vocab = metaspace().get_vocab()
    token_ids = []
    for character in text:
        piece = "▁" if character == " " else character
        token_ids += [vocab[piece]] if piece in vocab else [vocab[f"<0x{byte:02X}>"] for byte in character.encode()]
    pieces, rest = pieces_of(metaspace(), token_ids, [5])
    assert "".join(pieces) == text and rest == ""
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_space_before_the_first_word_is_kept():
    assert pieces_of(metaspace(), [1, 1], [5]) == ([" the", " the"], "")


def test_a_character_that_the_prompt_began_is_completed_in_the_output():
    rest_of_e, begun = 0xA9, 0xC3
    assert pieces_of(Utf8Bytes(), [rest_of_e, ord("x")], [ord("a"), begun]) == (["é", "x"], "")
    assert pieces_of(Utf8Bytes(), [ord("x")], [ord("a"), begun]) == (["x"], "")


@pytest.mark.parametrize(
    ("name", "token_id"), [("invalid bytes", 0x80), ("special tokens", 265), ("pieces across characters", 260)]
)
def test_the_cost_of_a_token_does_not_grow(name, token_id):
    """Streams that never end cleanly: the window stays a few tokens."""
    assert name
    counting = Counting(byte_level())
    detokenizer = IncrementalDetokenizer(counting, [1, 2])
    costs = []
    for _ in range(400):
        before = counting.num_decoded
        detokenizer.push(token_id)
        costs.append(counting.num_decoded - before)
    assert max(costs) <= 60
    assert sum(costs[300:]) == pytest.approx(sum(costs[100:200]), rel=0.25)


def test_tidying_of_spaces_is_turned_off():
    """A tokenizer that tidies would change text that was shown: "a" and then " ." is "a ." and not "a."."""

    class Tidying(Utf8Bytes):
        clean_up_tokenization_spaces = True

        def decode(self, token_ids, *, skip_special_tokens=True, clean_up_tokenization_spaces=True):
            text = super().decode(token_ids)
            return text.replace(" .", ".") if clean_up_tokenization_spaces else text

    pieces, rest = pieces_of(Tidying(), list(b"a . b"))
    assert "".join(pieces) + rest == "a . b"


STOPS = st.lists(st.text("ab é叫", min_size=1, max_size=4), min_size=1, max_size=3, unique=True)


@settings(max_examples=120)
@given(text=st.text("ab é叫", max_size=25), stops=STOPS, include=st.booleans())
def test_what_is_shown_is_never_taken_back_by_a_stop_string(text, stops, include):
    params = SamplingParams(stop=stops, max_tokens=None, include_stop_str_in_output=include)
    rules = StopRules(params, (), 10**6, IncrementalDetokenizer(Utf8Bytes(), []))
    shown, stop = "", None
    for count, byte in enumerate(text.encode(), 1):
        stop = rules.push(byte, count)
        shown += rules.take(final=False)
        assert rules.text.startswith(shown)
        if stop is not None:
            break
    first = min(((text.find(s) + len(s), text.find(s)) for s in stops if s in text), default=None)
    assert (stop is None) == (first is None)
    if stop is not None:
        at = text.find(stop.stop_reason)
        assert at + len(stop.stop_reason) == first[0], "the stop string that is complete first ends the text"
        assert rules.text == (text[: first[0]] if include else text[:at])
    assert shown + rules.take(final=True) == rules.text


def test_a_long_text_is_cheap_to_take_in():
    """100,000 tokens with a stop string: pieces are not joined again at every token."""
    rules = StopRules(SamplingParams(stop="zz", max_tokens=None), (), 10**6, IncrementalDetokenizer(Utf8Bytes(), []))
    sizes = []
    original = rules._text.since
    rules._text = _Recording(rules._text, sizes)
    assert original
    for count in range(1, 3001):
        rules.push(ord("a") + count % 20, count)
        rules.take(final=False)
    assert max(sizes) <= 4


class _Recording:
    """Writes down how much text each look at its end reads."""

    def __init__(self, text, sizes):
        self._inner, self._sizes = text, sizes

    def since(self, begin):
        found = self._inner.since(begin)
        self._sizes.append(len(found))
        return found

    def __len__(self):
        return len(self._inner)

    def __getattr__(self, name):
        return getattr(self._inner, name)
