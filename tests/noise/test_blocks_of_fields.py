"""Fields made in place, in chunks and on two threads are the words of the definition."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Dense, Draft, Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.philox import field_words, philox4x32
from draftproof.two_threads import in_two_threads
from draftproof.verify import get_verifier

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


@pytest.mark.parametrize("num_keys", [1, 2, 9, 40])
def test_prepared_fields_are_the_same_fields(num_keys: int) -> None:
    keys = [Key(Purpose.TARGET, position) for position in range(num_keys)]
    prepared, plain = KeyedNoise(3), KeyedNoise(3)
    prepared.prepare(keys, 20_000)
    assert (len(prepared._fields) > 1) == (num_keys > 1)
    for key in keys:
        assert np.array_equal(prepared.field(key, 20_000), plain.field(key, 20_000))


def test_a_block_is_drawn_alike_whether_its_fields_were_prepared() -> None:
    generator = np.random.default_rng(1)
    rows = [Dense(row / row.sum()) for row in generator.random((4, 10_000), dtype=np.float32)]
    plain = KeyedNoise(8)
    token_ids = [law.draw(plain, Key(Purpose.TARGET, 20 + index)) for index, law in enumerate(rows)]
    for wrong in (3, 2, 1, 0):
        drafted = [*token_ids[:wrong], token_ids[wrong] + 1, 0, 0][:3]
        verdict = get_verifier("keyed").verify(Draft.of_token_ids(20, drafted), rows, KeyedNoise(8))
        assert verdict.token_ids == tuple(token_ids[: wrong + 1])


def test_two_threads_are_a_loop() -> None:
    assert in_two_threads(lambda item: item * item, range(100)) == [item * item for item in range(100)]
    assert in_two_threads(str, [1]) == ["1"] and in_two_threads(str, []) == []

    def nested(item: int) -> list[int]:
        return in_two_threads(lambda other: item + other, [1, 2, 3])

    assert in_two_threads(nested, [10, 20]) == [[11, 12, 13], [21, 22, 23]]


def test_an_error_in_either_thread_is_raised_and_leaves_the_helper_usable() -> None:
    def fails(item: int) -> int:
        if item == 5:
            raise ValueError("five")
        return item

    for _ in range(20):
        with pytest.raises(ValueError, match="five"):
            in_two_threads(fails, range(10))
    assert in_two_threads(lambda item: item, range(4)) == [0, 1, 2, 3]


def test_many_callers_at_once_get_their_own_results() -> None:
    found: dict[int, list[int]] = {}

    def caller(name: int) -> None:
        found[name] = in_two_threads(lambda item: name * item, range(200))

    threads = [threading.Thread(target=caller, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: [name * item for item in range(200)] for name in range(6)}
