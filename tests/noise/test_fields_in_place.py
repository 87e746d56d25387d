"""Fields made in place and in chunks are the words of the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.philox import field_words, philox4x32

WORD = st.integers(0, 2**32 - 1)


@given(rest=st.tuples(WORD, WORD, WORD), key=st.tuples(WORD, WORD), blocks=st.lists(WORD, min_size=1, max_size=9))
@settings(max_examples=200)
def test_words_in_place_are_the_definition(rest, key, blocks) -> None:  # type: ignore[no-untyped-def]
    words = field_words(np.array(blocks, dtype=np.uint64), rest, key)
    assert [tuple(row) for row in words.tolist()] == [philox4x32((block, *rest), key) for block in blocks]


def test_chunks_meet_without_a_seam() -> None:
    size = 4 * 40_000
    field = KeyedNoise(5).field(Key(Purpose.TARGET, 9), size)
    blocks = np.arange(size // 4)
    words = philox4x32((blocks, 9, 0, 0), (5, 0))
    assert np.array_equal(field.reshape(-1, 4), np.stack(words, axis=1).astype(np.uint32))


def test_a_few_tokens_drawn_one_by_one_have_the_field_s_words() -> None:
    key, field = Key(Purpose.TARGET, 3), KeyedNoise(11).field(Key(Purpose.TARGET, 3), 5000)
    for count in range(1, 20):
        ids = np.arange(7, 7 + 13 * count, 13)
        assert np.array_equal(KeyedNoise(11).field_at(key, ids), field[ids])
