"""The race with words for the tokens that can win alone: the winner of the whole field, on the edge too."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import race as race_module
from draftproof.core import Key, Purpose
from draftproof.errors import LawError
from draftproof.noise import KeyedNoise
from draftproof.philox import block_words, key_schedule, philox4x32
from draftproof.race import BLOCK, blocks_that_can_win, exponential, race, race_of_few

WORD = st.integers(0, 2**32 - 1)


@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD))
def test_one_block_s_words_are_the_definition(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    assert block_words(counter, key_schedule(key)) == philox4x32(counter, key)


@given(
    seed=st.integers(0, 2**64 - 1),
    size=st.integers(4096, 9001),
    scale=st.sampled_from([0.0, 0.5, 2.0, 4.0, 8.0, 30.0]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=150)
def test_a_law_of_many_tokens_draws_what_its_whole_field_draws(seed: int, size: int, scale: float, dtype: type) -> None:
    key = Key(Purpose.TARGET, seed % 1000)
    logits = scale * np.random.default_rng(seed).standard_normal(size)
    weights = np.exp(logits - logits.max()).astype(dtype)
    expected = race(KeyedNoise(seed).field(key, size), weights)
    assert KeyedNoise(seed).choice(key, weights) == expected
    assert KeyedNoise(seed).choice(key, weights * dtype(1e-20)) == expected


def test_most_words_of_a_peaked_law_are_never_made() -> None:
    logits = 12 * np.random.default_rng(0).standard_normal(8192)
    weights = np.exp((logits - logits.max()) / 0.7)
    blocks = blocks_that_can_win(weights, int(weights.argmax()), 2**31)
    assert blocks is not None and 0 < len(blocks) < 2048 // 2
    assert blocks_that_can_win(np.ones(8192), 5, 2**31) is None


def outsider(share: float) -> tuple[np.ndarray, np.ndarray]:
    """(words, weights): token 9 has the smallest word that there is, and an E / w of token 40's over `share`."""
    words, weights = np.full(400, 2**30, dtype=np.uint32), np.zeros(400)
    words[9] = 0
    weights[40], weights[9] = 1.0, exponential(0) / exponential(2**30) * share
    return words, weights


@pytest.mark.parametrize(("share", "winner"), [(1 + 1e-5, 9), (1 + 1e-12, 9), (1 - 1e-12, 40), (1 - 1e-5, 40)])
def test_the_least_likely_winner_can_win(share: float, winner: int) -> None:
    words, weights = outsider(share)
    assert race(words, weights) == winner
    blocks = blocks_that_can_win(weights, 40, int(words[40]))
    assert blocks is not None and blocks.tolist() == ([10] if share < 1 - 1e-6 else [2, 10])


@pytest.mark.parametrize("constant", ["SMALLEST_VALUE", "_SLACK"])
def test_a_bound_that_is_a_little_too_high_is_caught(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, weights = outsider(1 + 1e-12)
    assert race(words, weights) == 9
    wrong = {"SMALLEST_VALUE": race_module.SMALLEST_VALUE * 1.001, "_SLACK": -race_module._SLACK}
    monkeypatch.setattr(race_module, constant, wrong[constant])
    blocks = blocks_that_can_win(weights, 40, int(words[40]))
    assert blocks is not None and 9 // BLOCK not in blocks


@given(st.lists(st.tuples(WORD, st.floats(0, 1)), min_size=1, max_size=16).filter(lambda all: any(w for _, w in all)))
def test_a_few_tokens_race_as_many_do(tokens: list[tuple[int, float]]) -> None:
    weights = [weight if weight > 1e-290 else 0.0 for _, weight in tokens]
    if not any(weights):
        return
    integers = [integer for integer, _ in tokens]
    assert race_of_few(integers, weights) == race(np.array(integers, dtype=np.uint32), np.array(weights))


def test_near_ties_among_a_few_are_decided_by_logarithms() -> None:
    """v says 1 and 0.9, E says otherwise: -log(1 - v) grows faster than v."""
    low, high = 2**31, 2**32 - 2
    weights = [0.5, 0.5 * exponential(high) / exponential(low)]
    for change, winner in ((1 + 1e-12, 1), (1 - 1e-12, 0)):
        assert race_of_few([low, high], [weights[0], weights[1] * change]) == winner
    assert race_of_few([low, low, low], [0.25, 0.5, 0.5]) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5])
@pytest.mark.parametrize("size", [3, 40, 5000])
@pytest.mark.parametrize("place", [0, 2])
def test_a_law_that_is_none_is_an_error_at_every_size(bad: float, size: int, place: int) -> None:
    weights = np.full(size, 1e-9)
    weights[1], weights[place] = 1.0, bad
    with pytest.raises(LawError, match="no token can be drawn"):
        KeyedNoise(1).choice(Key(Purpose.TARGET, 0), weights)
    with pytest.raises(LawError, match="no token can be drawn"):
        KeyedNoise(1).choice(Key(Purpose.TARGET, 0), np.zeros(size))


def test_positions_of_any_integer_type_are_the_same() -> None:
    for token_id in (0, 4095):
        word = KeyedNoise(2**63 + 5).word(Key(Purpose.DRAFT, 2**31 + 7, 3), token_id)
        same = KeyedNoise(np.uint64(2**63 + 5)).word(
            Key(Purpose.DRAFT, np.int64(2**31 + 7), np.int64(3)), np.int64(token_id)
        )
        assert word == same


def test_blocks_are_four_tokens() -> None:
    assert BLOCK == len(philox4x32((0, 0, 0, 0), (0, 0)))
