"""KeyedNoise: layout, fields, coins and the race."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core import Key, Purpose
from draftproof.errors import LawError, ParameterError
from draftproof.noise import KeyedNoise, philox4x32, race
from draftproof.race import exponential

TARGET = Key(Purpose.TARGET, 17)


def test_layout_version_1():
    """The layout, spelled out: word (token % 4) of the counter (token // 4, position, sample, purpose and index)."""
    noise = KeyedNoise((7 << 32) | 9, sample_index=3)
    key = Key(Purpose.MATCH, 1234, 56)
    field = noise.field(key, 11)
    for token_id in range(11):
        words = philox4x32((token_id // 4, 1234, 3, (20 << 24) | 56), (9, 7), 7)
        assert field[token_id] == words[token_id % 4] == noise.word(key, token_id)
    first, second, *_ = philox4x32((0, 1234, 3, (17 << 24) | 2), (9, 7), 7)
    coin = noise.uniform(Key(Purpose.COIN, 1234, 2))
    assert coin == ((first << 20 | second >> 12) + 0.5) / 2**52


def test_purpose_numbers_are_part_of_the_layout():
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "TARGET": 0,
        "XTC": 1,
        "DRAFT": 16,
        "COIN": 17,
        "RESIDUAL": 18,
        "BONUS": 19,
        "MATCH": 20,
    }
    assert [purpose.name for purpose in Purpose if purpose.persists] == ["TARGET", "XTC"]


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    token_ids=st.lists(st.integers(0, 20_000), min_size=1, max_size=40, unique=True),
    vocab_sizes=st.lists(st.integers(1, 20_001), min_size=1, max_size=3),
)
def test_a_field_is_the_same_whole_in_part_and_in_any_order(seed, position, token_ids, vocab_sizes):
    ids = np.array(sorted(token_ids))
    key = Key(Purpose.TARGET, position)
    whole = KeyedNoise(seed).field(key, 20_001)
    assert (KeyedNoise(seed).field_at(key, ids) == whole[ids]).all()
    noise = KeyedNoise(seed)
    for vocab_size in vocab_sizes:
        assert (noise.field(key, vocab_size) == whole[:vocab_size]).all()
    assert (noise.field_at(key, ids) == whole[ids]).all()


def test_the_cache_of_fields_is_bounded_and_changes_nothing():
    noise = KeyedNoise(1)
    before = [noise.field(Key(Purpose.TARGET, position), 9).copy() for position in range(100)]
    after = [noise.field(Key(Purpose.TARGET, position), 9) for position in range(100)]
    assert (np.array(before) == np.array(after)).all()
    assert len(noise._fields) <= 25


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"seed": 0, "sample_index": 2**32}, "sample_index"),
    ],
)
def test_seeds_have_64_bits_and_are_never_clamped(change, wrong):
    with pytest.raises(ParameterError, match=wrong):
        KeyedNoise(**change)


@pytest.mark.parametrize("key", [Key(Purpose.TARGET, -1), Key(Purpose.TARGET, 2**32), Key(Purpose.COIN, 1, 2**24)])
def test_keys_that_would_collide_are_refused(key):
    with pytest.raises(ParameterError):
        KeyedNoise(0).uniform(key)


def test_seeds_beyond_32_bits_differ():
    fields = {KeyedNoise(seed).field(TARGET, 64).tobytes() for seed in (1, 1 << 32, 1 << 63, (1 << 32) | 1)}
    assert len(fields) == 4


@pytest.mark.parametrize("integer", [0, 1, 2, 2**24, 2**24 + 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_exponential_is_within_two_ulp_at_both_ends(integer):
    """The float32 trap: (k + 1/2) / 2^32 rounds to 1 there, and -log1p(-1) is infinite."""
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    exact = float(-(1 - (Decimal(integer) + Decimal("0.5")) / 2**32).ln())
    assert abs(exponential(integer) - exact) <= 2 * math.ulp(exact)


def test_gumbel_values_stay_within_the_stated_ends():
    largest, smallest = -math.log(exponential(0)), -math.log(exponential(2**32 - 1))
    assert 22.87 < largest < 22.88 and -3.13 < smallest < -3.12


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.floats(1e-30, 1)), min_size=1, max_size=30))
def test_race_is_the_argmin_of_the_exact_ratios(tokens):
    integers = np.array([integer for integer, _ in tokens], dtype=np.uint32)
    for dtype in (np.float32, np.float64):
        weights = np.array([weight for _, weight in tokens], dtype=dtype)
        ratios = [exponential(int(i)) / float(w) for i, w in zip(integers, weights, strict=True)]
        assert race(integers, weights) == ratios.index(min(ratios))


@given(st.integers(0, 2**32 - 1), st.integers(2, 50), st.integers(0, 49))
def test_race_ties_go_to_the_lowest_id(integer, size, first):
    integers = np.full(size, integer, dtype=np.uint32)
    weights = np.where(np.arange(size) < first % size, 0, 0.125)
    assert race(integers, weights) == first % size


def test_race_never_picks_weight_zero_even_with_the_best_noise():
    integers = np.array([0, 2**32 - 1, 0], dtype=np.uint32)
    assert race(integers, np.array([0.0, 1e-38, 0.0], dtype=np.float32)) == 1


def test_race_scales_weights_of_any_size():
    integers = np.random.default_rng(0).integers(0, 2**32, 1000, dtype=np.uint32)
    weights = np.random.default_rng(1).random(1000)
    expected = race(integers, weights)
    for scale in (1e-300, 1e-42, 1e30):
        assert race(integers, weights * scale) == expected
    assert race(integers, (weights * 1e-35).astype(np.float32)) == race(
        integers, (weights * 1e-35).astype(np.float32).astype(np.float64)
    )


@pytest.mark.parametrize("weights", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [0.5, -0.5]])
def test_race_without_a_law_is_an_error(weights):
    with pytest.raises(LawError, match="no token can be drawn"):
        race(np.array([5, 6], dtype=np.uint32), np.array(weights))


def test_coin_is_strict_and_never_zero_or_one():
    """T11: with u = 0 a token of probability 0 must not pass. T12: no coin rounds to 1."""
    noise = KeyedNoise(0)
    coins = [noise.uniform(Key(Purpose.COIN, position)) for position in range(2000)]
    assert 0 < min(coins) and max(coins) < 1
    key = Key(Purpose.COIN, 0)
    assert not noise.coin(key, 0.0, 0.3) and not noise.coin(key, 0.0, 0.0)
    assert noise.coin(key, 1.0) and noise.coin(key, 2.0, 1.0)
    assert 0 < (0 + 0.5) * 2.0**-52 and (2**52 - 1 + 0.5) * 2.0**-52 < 1


def test_coins_resolve_what_24_bits_cannot():
    """T13: a token with p = 1e-9, q = 1 is accepted with probability 1e-9, not 2^-24."""
    resolution = 2.0**-53
    assert resolution < 1e-9 / 1000
    low_bits = {int(KeyedNoise(3).uniform(Key(Purpose.COIN, position)) * 2**53) % 2**20 for position in range(500)}
    assert len(low_bits) > 480


def test_same_key_with_other_weights_answers_from_the_same_field():
    noise = KeyedNoise(11)
    weights = np.full(50, 0.02)
    first = noise.choice(TARGET, weights)
    assert noise.choice(TARGET, weights * 3) == first
    only = np.zeros(50)
    only[7] = 1.0
    assert noise.choice(TARGET, only) == 7
    ids = np.array([3, first, 49] if 3 < first < 49 else sorted({first, 10, 20}))
    assert noise.choice(TARGET, weights[ids], ids) == first


@pytest.mark.parametrize("step", [1, 4, 9, 100, 120, 140])
def test_a_field_at_many_of_its_blocks_is_the_field_and_is_kept(step):
    """Of tokens 120 apart one block in 30 is asked for, of tokens 140 apart one in 35."""
    noise, key = KeyedNoise(5), Key(Purpose.TARGET, 17)
    whole, ids = KeyedNoise(5).field(key, 4_000), np.arange(3, 4_000, step)
    assert np.array_equal(noise.field_at(key, ids), whole[ids])
    assert (key in noise._fields) == (step < 128)
    assert noise.choice(key, np.ones(4_000, dtype=np.float32)) == KeyedNoise(5).choice(key, np.ones(4_000, np.float32))


@pytest.mark.parametrize("first", [1, 6, 96, 1_000])
def test_a_field_that_is_asked_for_again_in_more_tokens_goes_on(first, monkeypatch):
    whole = KeyedNoise(5).field(TARGET, 4_001)
    noise, made = KeyedNoise(5), []
    words = KeyedNoise._words
    monkeypatch.setattr(KeyedNoise, "_words", lambda own, key, blocks: made.extend(blocks) or words(own, key, blocks))
    assert np.array_equal(noise.field(TARGET, first), whole[:first])
    assert np.array_equal(noise.field(TARGET, 4_001), whole) and np.array_equal(noise.field(TARGET, 7), whole[:7])
    assert made == list(range(1_001))
