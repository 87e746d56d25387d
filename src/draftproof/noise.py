"""The keyed streams: the only source of randomness.

Layout, version 1 (part of the replay promise: replay holds across versions of draftproof that have
the same LAYOUT_VERSION, for the same target numerics):

    Philox4x32-7 (Salmon et al., SC 2011, section 5.4)
    key           the request's 64-bit seed, low word first
    counter[0]    token id // 4 for fields, 0 for coins
    counter[1]    position (absolute; see core.Key)
    counter[2]    sample index n
    counter[3]    purpose << 24 | node or draw index
    word          lane token id % 4 of the four output words

Seven rounds, not ten: Philox4x32-7 is the smallest variant that its authors found to pass
BigCrush; it passes our own batteries on this very layout, related seeds included, where three
rounds fail (tests/statistical/test_philox_rounds.py); and on a GPU the rounds are what a field
costs. A call serves four tokens.

A field's token has v = (k + 1/2) / 2^32, k its 32-bit word, and the exponential value
E = -log(1 - v); 1 - v is exact in float64. The Gumbel value is G = -log E, and
argmax(log w + G) = argmin E / w, the race that `choice` runs. It needs no logarithm except among
the few tokens that can still win: E >= v, so a token whose v / w exceeds the best known E / w is
out. Survivors are compared in float64 by `_negated_log`, which is written out in operations that
IEEE 754 rounds alike everywhere, so that two devices never order a near tie differently.

What 32 bits cost: G lies in [-3.13, 22.88]. Tokens that stand 18, 20 and 22 nats below the best lose
1e-5, 5e-4 and 3 % of their mass; from 23 nats on they are never drawn against a token of
probability near 1 (tests/noise/test_gumbel_tails.py).

Coins have 52 bits, u = (k + 1/2) / 2^52, strictly between 0 and 1 in float64.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Number, Purpose, Weights
from draftproof.errors import LawError, ParameterError
from draftproof.philox import MASK, ROUNDS, field_words, philox4x32

__all__ = ["LAYOUT_VERSION", "ROUNDS", "KeyedNoise", "fresh_seed", "philox4x32", "race"]

LAYOUT_VERSION: Final = 1

_SEED_LIMIT: Final = 1 << 64
_INDEX_LIMIT: Final = 1 << 24
_NUM_CACHED_FIELDS: Final = 24
_NUM_WORD_BY_WORD: Final = 8  # tokens that are quicker drawn one by one than as an array


def fresh_seed() -> int:
    """A 64-bit seed from the operating system, for a request that came without one."""
    return secrets.randbits(64)


class KeyedNoise:
    """One request's noise: a pure function of (seed, sample index, key, token id).

    seed: 0 to 2^64 - 1. sample_index: which of a request's n samples, 0 to 2^32 - 1.
    Raises ParameterError outside these.
    """

    __slots__ = ("_fields", "_key", "sample_index", "seed")

    def __init__(self, seed: int, sample_index: int = 0) -> None:
        if not 0 <= seed < _SEED_LIMIT:
            raise ParameterError("seed", seed, "an integer of 64 bits, 0 to 2**64 - 1")
        if not 0 <= sample_index <= MASK:
            raise ParameterError("sample_index", sample_index, "an integer of 32 bits, 0 to 2**32 - 1")
        self.seed, self.sample_index = seed, sample_index
        self._key = (seed & MASK, seed >> 32)
        self._fields: OrderedDict[Key, NDArray[np.uint32]] = OrderedDict()

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        """True with probability min(1, numerator / denominator): u * denominator < numerator, strictly."""
        return bool(self.uniform(key) * denominator < numerator)

    def uniform(self, key: Key) -> float:
        """The coin of `key`: (k + 1/2) / 2^52 with a 52-bit k, strictly between 0 and 1."""
        high, low, _, _ = philox4x32(self._counter(key, 0), self._key)
        return float(((high << 20 | low >> 12) + 0.5) * 2.0**-52)

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[np.int64] | None = None) -> int:
        """A token id in proportion to `weights` [K] by an exponential race over the field of `key`.

        token_ids: [K] ascending ids, None for 0..K-1. Ties go to the lowest id; a weight of zero
        never wins. Raises LawError if no weight is positive and finite.
        """
        integers = self.field(key, len(weights)) if token_ids is None else self.field_at(key, token_ids)
        winner = race(integers, weights)
        return winner if token_ids is None else int(token_ids[winner])

    def field(self, key: Key, vocab_size: int) -> NDArray[np.uint32]:
        """[vocab_size] 32-bit words of the field of `key`, one per token id. Cached, never redrawn."""
        cached = self._fields.get(key)
        if cached is None or len(cached) < vocab_size:
            cached = self._words(key, np.arange((vocab_size + 3) // 4, dtype=np.uint64)).reshape(-1)
            self._fields[key] = cached
            if len(self._fields) > _NUM_CACHED_FIELDS:
                self._fields.popitem(last=False)
        return cached[:vocab_size]

    def field_at(self, key: Key, token_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """[K] words of the field of `key` at ascending `token_ids` [K] alone."""
        cached = self._fields.get(key)
        if cached is not None and int(token_ids[-1]) < len(cached):
            return cached[token_ids]
        if len(token_ids) <= _NUM_WORD_BY_WORD:
            return np.array([self.word(key, int(token_id)) for token_id in token_ids], dtype=np.uint32)
        blocks = token_ids >> 2
        first_of_block = np.empty(len(blocks), dtype=bool)
        first_of_block[0] = True
        np.not_equal(blocks[1:], blocks[:-1], out=first_of_block[1:])
        words = self._words(key, blocks[first_of_block].astype(np.uint64))
        found: NDArray[np.uint32] = words[np.cumsum(first_of_block) - 1, token_ids & 3]
        return found

    def word(self, key: Key, token_id: int) -> int:
        """The 32-bit word of one token in the field of `key`."""
        return int(philox4x32(self._counter(key, token_id >> 2), self._key)[token_id & 3])

    def _words(self, key: Key, blocks: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """[B, 4] words of the field of `key` at blocks of four tokens."""
        _, position, sample_index, tag = self._counter(key, 0)
        return field_words(blocks, (position, sample_index, tag), self._key)

    def _counter(self, key: Key, block: Any) -> tuple[Any, int, int, int]:
        if not 0 <= key.position <= MASK:
            raise ParameterError("position", key.position, "an absolute position below 2**32")
        if not 0 <= key.index < _INDEX_LIMIT:
            raise ParameterError("index", key.index, "a node or draw index below 2**24")
        return block, key.position, self.sample_index, Purpose(key.purpose) << 24 | key.index


def race(integers: NDArray[np.uint32], weights: Weights) -> int:
    """argmin E / w, the lowest index on ties.

    integers: [K] 32-bit words of a field. weights: [K] non-negative, not necessarily summing to 1.
    Raises LawError if no weight is positive, or one is NaN, infinite or negative.
    """
    values = weights if weights.dtype in (np.float32, np.float64) else weights.astype(np.float64)
    largest = float(values.max())
    if not 0 < largest < np.inf:
        raise LawError(f"no token can be drawn: the largest weight of {len(values)} is {largest}, must be positive")
    if values.dtype == np.float32 and largest < 1e-12:
        values = values.astype(np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        ratios = integers.astype(values.dtype)
        ratios += values.dtype.type(0.5)
        ratios /= values
    leader = int(ratios.argmin())
    if ratios[leader] < 0:
        raise LawError(f"no token can be drawn: index {leader} has the negative weight {float(values[leader])}")
    bound = _exponential(int(integers[leader])) / float(values[leader])
    # v / w is rounded to the weights' precision twice, E / w to float64.
    survivors = np.flatnonzero(ratios <= bound * 2.0**32 * (1 + 1e-6))
    if len(survivors) == 1:
        return leader
    return int(min((_exponential(int(integers[i])) / float(values[i]), i) for i in survivors)[1])


def _exponential(integer: int) -> float:
    """E = -log(1 - (k + 1/2) / 2^32) of a 32-bit word k."""
    return _negated_log((float(MASK - integer) + 0.5) * 2.0**-32)


_LOG2_HIGH: Final = 0.693147180369123816490  # the upper 33 bits of log 2: exact products with small integers
_LOG2_LOW: Final = 1.90821492927058770002e-10
_SERIES: Final = tuple(2.0 / (2 * n + 1) for n in range(12, 0, -1))


def _negated_log(x: float) -> float:
    """-log x for 0 < x < 1, within 2 ulp, in additions, multiplications and one division alone.

    x = m 2^e with m in [1/2, 1) doubled where below sqrt(1/2); s = (m - 1)/(m + 1), |s| < 0.172;
    log m = 2 s + (2/3) s^3 + ... to the 25th power, whose remainder is below 1e-20.
    """
    exponent = 0
    while x < 0.70710678118654752440:
        x, exponent = x * 2.0, exponent - 1
    s = (x - 1.0) / (x + 1.0)
    square = s * s
    tail = 0.0
    for coefficient in _SERIES:
        tail = (tail + coefficient) * square
    return -(exponent * _LOG2_HIGH + (2.0 * s + (s * tail + exponent * _LOG2_LOW)))
