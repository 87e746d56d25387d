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
argmax(log w + G) = argmin E / w, the race that `choice` runs; race.py has it, and the bounds by which
most tokens need no logarithm, and many no word.

What 32 bits cost: G lies in [-3.13, 22.88]. Tokens that stand 18, 20 and 22 nats below the best lose
1e-5, 5e-4 and 3 % of their mass; from 23 nats on they are never drawn against a token of
probability near 1 (tests/noise/test_gumbel_tails.py).

Coins have 52 bits, u = (k + 1/2) / 2^52, strictly between 0 and 1 in float64.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Number, Weights
from draftproof.errors import ParameterError
from draftproof.philox import MASK, ROUNDS, block_words, field_words, key_schedule, philox4x32
from draftproof.race import BLOCK, blocks_that_can_win, race, race_of_few

__all__ = ["LAYOUT_VERSION", "ROUNDS", "KeyedNoise", "fresh_seed", "philox4x32", "race"]

LAYOUT_VERSION: Final = 1

_SEED_LIMIT: Final = 1 << 64
_INDEX_LIMIT: Final = 1 << 24
_NUM_CACHED_FIELDS: Final = 24
_FEW: Final = 24  # tokens, or blocks, that are quicker drawn one by one than as an array
_MANY: Final = 4096  # tokens from which on it pays to ask which can win
_SHARE: Final = 32  # of one block in so many, all of a field are computed


def fresh_seed() -> int:
    """A 64-bit seed from the operating system, for a request that came without one."""
    return secrets.randbits(64)


class KeyedNoise:
    """One request's noise: a pure function of (seed, sample index, key, token id).

    seed: 0 to 2^64 - 1. sample_index: which of a request's n samples, 0 to 2^32 - 1.
    Raises ParameterError outside these.
    """

    __slots__ = ("_fields", "_key", "_schedule", "sample_index", "seed")

    def __init__(self, seed: int, sample_index: int = 0) -> None:
        if not 0 <= seed < _SEED_LIMIT:
            raise ParameterError("seed", seed, "an integer of 64 bits, 0 to 2**64 - 1")
        if not 0 <= sample_index <= MASK:
            raise ParameterError("sample_index", sample_index, "an integer of 32 bits, 0 to 2**32 - 1")
        self.seed, self.sample_index = seed, sample_index
        self._key = (int(seed) & MASK, int(seed) >> 32)
        self._schedule = key_schedule(self._key)
        self._fields: OrderedDict[Key, NDArray[np.uint32]] = OrderedDict()

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        """True with probability min(1, numerator / denominator): u * denominator < numerator, strictly."""
        return bool(self.uniform(key) * denominator < numerator)

    def uniform(self, key: Key) -> float:
        """The coin of `key`: (k + 1/2) / 2^52 with a 52-bit k, strictly between 0 and 1."""
        high, low, _, _ = block_words((0, *self._counter(key)), self._schedule)
        return float(((high << 20 | low >> 12) + 0.5) * 2.0**-52)

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[np.int64] | None = None) -> int:
        """A token id in proportion to `weights` [K] by an exponential race over the field of `key`.

        token_ids: [K] ascending ids, None for 0..K-1. Ties go to the lowest id; a weight of zero
        never wins. Raises LawError if no weight is positive and finite.
        """
        if len(weights) <= _FEW:
            ids = range(len(weights)) if token_ids is None else token_ids.tolist()
            return int(ids[race_of_few(self._words_of_few(key, ids), weights.tolist())])
        if token_ids is not None:
            return int(token_ids[race(self.field_at(key, token_ids), weights)])
        if len(weights) >= _MANY and weights.dtype in (np.float32, np.float64) and key not in self._fields:
            return self._choice_of_many(key, weights)
        return race(self.field(key, len(weights)), weights)

    def _choice_of_many(self, key: Key, weights: Weights) -> int:
        """`choice` with words for those blocks alone that can win; with the whole field if those are most."""
        padding = -len(weights) % BLOCK
        padded = np.concatenate([weights, np.zeros(padding, dtype=weights.dtype)]) if padding else weights
        leader = int(padded.argmax())
        blocks = blocks_that_can_win(padded, leader, self.word(key, leader))
        if blocks is None:
            return race(self.field(key, len(weights)), weights)
        words = self._words(key, blocks.astype(np.uint64))
        winner = race(words.reshape(-1), padded.reshape(-1, BLOCK).take(blocks, axis=0).reshape(-1))
        return int(blocks[winner // BLOCK]) * BLOCK + winner % BLOCK

    def field(self, key: Key, vocab_size: int) -> NDArray[np.uint32]:
        """[vocab_size] 32-bit words of the field of `key`, one per token id. Cached, never redrawn."""
        cached = self._fields.get(key)
        num_known = 0 if cached is None else len(cached)
        if cached is None or num_known < vocab_size:
            blocks = np.arange(num_known // BLOCK, -(-vocab_size // BLOCK), dtype=np.uint64)
            more = self._words(key, blocks).reshape(-1)
            cached = self._fields[key] = more if cached is None else np.concatenate([cached, more])
            if len(self._fields) > _NUM_CACHED_FIELDS:
                self._fields.popitem(last=False)
        return cached[:vocab_size]

    def field_at(self, key: Key, token_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """[K] words of the field of `key` at ascending `token_ids` [K] alone."""
        cached = self._fields.get(key)
        if cached is not None and int(token_ids[-1]) < len(cached):
            return cached[token_ids]
        if len(token_ids) <= _FEW:
            return np.array(self._words_of_few(key, token_ids.tolist()), dtype=np.uint32)
        blocks = token_ids >> 2
        first_of_block = np.empty(len(blocks), dtype=bool)
        first_of_block[0] = True
        np.not_equal(blocks[1:], blocks[:-1], out=first_of_block[1:])
        if _SHARE * np.count_nonzero(first_of_block) > int(blocks[-1]):
            # A law so wide is hardly filtered: whoever draws at this position looks at all tokens, and finds them here.
            return self.field(key, int(token_ids[-1]) + 1)[token_ids]
        words = self._words(key, blocks[first_of_block].astype(np.uint64))
        found: NDArray[np.uint32] = words[np.cumsum(first_of_block) - 1, token_ids & 3]
        return found

    def word(self, key: Key, token_id: int) -> int:
        """The 32-bit word of one token in the field of `key`."""
        return self._words_of_few(key, (int(token_id),))[0]

    def _words_of_few(self, key: Key, token_ids: Sequence[int]) -> list[int]:
        """[K] words of the field of `key` at `token_ids` [K], in any order."""
        rest, schedule = self._counter(key), self._schedule
        return [block_words((token_id >> 2, *rest), schedule)[token_id & 3] for token_id in token_ids]

    def _words(self, key: Key, blocks: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """[B, 4] words of the field of `key` at blocks of four tokens."""
        rest = self._counter(key)
        if len(blocks) <= _FEW:
            words = [block_words((block, *rest), self._schedule) for block in blocks.tolist()]
            return np.array(words, dtype=np.uint32)
        return field_words(blocks, rest, self._key)

    def _counter(self, key: Key) -> tuple[int, int, int]:
        """The words of a counter after the block's."""
        if not 0 <= key.position <= MASK:
            raise ParameterError("position", key.position, "an absolute position below 2**32")
        if not 0 <= key.index < _INDEX_LIMIT:
            raise ParameterError("index", key.index, "a node or draw index below 2**24")
        return int(key.position), int(self.sample_index), int(key.purpose) << 24 | int(key.index)
