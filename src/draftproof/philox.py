"""Philox4x32-7: as plain arithmetic for any integers, for one counter, and in place for fields of many tokens.

Rule (Salmon et al., SC 2011, section 5.4): seven rounds of (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2),
hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), the key moved by the Weyl constants after each.
`philox4x32` is the definition; `block_words` gives the same integers for one counter, in half the time. `fill_words`
gives them for a run of counters that differ in c0 alone: products of 32-bit words fit 64 unsigned bits, and the halves
are read in place; three rounds have words that are the same for all counters; and every step writes into memory that is
used again.
In: counters and keys of 32-bit words. Out: four 32-bit words for each counter.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 7
MASK: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_CHUNK: Final = 16384  # counters whose intermediate words stay in a core's second-level cache

Words: TypeAlias = NDArray[np.uint64]


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any], rounds: int = ROUNDS) -> tuple[Any, ...]:
    """Philox4x32 (Salmon et al., SC 2011): four 32-bit words for one counter under one key.

    counter, key: words of 32 bits, each a Python int or an int64 array (numpy's or torch's, on any
    device); arrays broadcast. Returns four words of the broadcast shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # An int64 product wraps; its sign bits, shifted in, are masked off with the rest.
        c0, c2 = ((product1 >> 32) ^ (c1 ^ k0)) & MASK, ((product0 >> 32) ^ (c3 ^ k1)) & MASK
        c1, c3 = product1 & MASK, product0 & MASK
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    return c0, c1, c2, c3


def field_words(blocks: Words, rest: tuple[int, int, int], key: tuple[int, int]) -> NDArray[np.uint32]:
    """[B, 4] words of the counters (block, *rest), for `blocks` [B] of 32-bit integers."""
    pairs = np.empty((len(blocks), 2), dtype=np.uint64)
    for start in range(0, len(blocks), _CHUNK):
        fill_words(pairs[start : start + _CHUNK], blocks[start : start + _CHUNK], rest, key)
    words = pairs.view(np.uint32)
    if np.little_endian:
        return words
    return np.ascontiguousarray(words[:, [1, 0, 3, 2]])


def key_schedule(key: tuple[int, int], rounds: int = ROUNDS) -> tuple[tuple[int, int], ...]:
    """The key of each round."""
    k0, k1 = key
    return tuple(((k0 + round_ * _WEYL[0]) & MASK, (k1 + round_ * _WEYL[1]) & MASK) for round_ in range(rounds))


def block_words(counter: tuple[int, int, int, int], schedule: tuple[tuple[int, int], ...]) -> tuple[int, int, int, int]:
    """`philox4x32` of one counter of Python integers, under the keys of `key_schedule`."""
    c0, c1, c2, c3 = counter
    for k0, k1 in schedule:
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c2 = product1 >> 32 ^ c1 ^ k0, product0 >> 32 ^ c3 ^ k1
        c1, c3 = product1 & 0xFFFFFFFF, product0 & 0xFFFFFFFF
    return c0, c1, c2, c3


def fill_words(pairs: Words, blocks: Words, rest: tuple[int, int, int], key: tuple[int, int]) -> None:
    """Write words 0 and 1, then 2 and 3, of each counter into `pairs` [B, 2], the second of a pair in the high half."""
    c1, c2, c3 = rest
    schedule = key_schedule(key)
    scratch = _scratch(len(blocks))
    high, low = scratch.view(np.uint32)[:, _HIGH::2], scratch.view(np.uint32)[:, _LOW::2]
    first, third = scratch[0], scratch[1]
    # Round 1: only c0 differs, so c0' and c1' are the same for all; c2' is `third`, c3' the low half of `old0`.
    k0, k1 = schedule[0]
    same = c2 * _MULTIPLIERS[1]
    same0, same1 = (same >> 32) ^ c1 ^ k0, same & MASK
    old0, old1, new0, new1 = 2, 3, 4, 5
    np.multiply(blocks, _M0, out=scratch[old0])
    np.bitwise_xor(high[old0], np.uint32(c3 ^ k1), out=low[1])
    # Round 2: c0 and c1 are the same for all, c2 and c3 differ; afterwards c3 is the same for all.
    k0, k1 = schedule[1]
    same = same0 * _MULTIPLIERS[0]
    np.multiply(third, _M1, out=scratch[old1])
    np.bitwise_xor(high[old1], np.uint32(same1 ^ k0), out=low[0])
    np.bitwise_xor(low[old0], np.uint32((same >> 32) ^ k1), out=low[1])
    scratch[old0].fill(same & MASK)
    # Later rounds read c1 and c3 where they are made, in the low halves of the round's before products.
    for k0, k1 in schedule[2:]:
        np.multiply(first, _M0, out=scratch[new0])
        np.multiply(third, _M1, out=scratch[new1])
        np.bitwise_xor(high[new1], low[old1], out=low[0])
        np.bitwise_xor(first, np.uint64(k0), out=first)
        np.bitwise_xor(high[new0], low[old0], out=low[1])
        np.bitwise_xor(third, np.uint64(k1), out=third)
        old0, old1, new0, new1 = new0, new1, old0, old1
    # The low words are what a shift to the high half keeps.
    for column, word, product in ((0, first, scratch[old1]), (1, third, scratch[old0])):
        np.left_shift(product, _HALF, out=product)
        np.bitwise_or(word, product, out=pairs[:, column])


_M0: Final = np.uint64(_MULTIPLIERS[0])
_M1: Final = np.uint64(_MULTIPLIERS[1])
_HALF: Final = np.uint64(32)
_LOW, _HIGH = (0, 1) if np.little_endian else (1, 0)
_local: Final = threading.local()


def _scratch(size: int) -> Words:
    """[6, size], this thread's own, used again by its next call; the high halves of the first two rows stay 0."""
    memory: Words | None = getattr(_local, "memory", None)
    if memory is None or memory.shape[1] < size:
        memory = _local.memory = np.zeros((6, max(size, 1024)), dtype=np.uint64)
    return memory[:, :size]
