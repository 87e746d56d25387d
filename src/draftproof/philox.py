"""Philox4x32-7, twice: as plain arithmetic for any integers, and in place for the fields that tokens are drawn with.

Rule (Salmon et al., SC 2011, section 5.4): seven rounds of (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2),
hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), the key moved by the Weyl constants after each.
`philox4x32` is the definition; `fill_words` gives the same integers for a run of counters that differ in c0 alone, in
half the time: products of 32-bit words fit 64 unsigned bits, so the high word is a shift; three rounds have words that
are the same for all counters; and every step writes into memory that is used again.
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


def fill_words(pairs: Words, blocks: Words, rest: tuple[int, int, int], key: tuple[int, int]) -> None:
    """Write words 0 and 1, then 2 and 3, of each counter into `pairs` [B, 2], the second of a pair in the high half."""
    c1, c2, c3 = rest
    k0, k1 = key
    first, second, third, fourth, product0, product1 = _scratch(len(blocks))
    # Round 1: only c0 differs, so c0' and c1' are the same for all.
    same = c2 * _MULTIPLIERS[1]
    same0, same1 = (same >> 32) ^ c1 ^ k0, same & MASK
    np.multiply(blocks, np.uint64(_MULTIPLIERS[0]), out=fourth)
    _high(fourth, third, c3 ^ k1)
    np.bitwise_and(fourth, np.uint64(MASK), out=fourth)
    k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
    # Round 2: c0 and c1 are the same for all, c2 and c3 differ; afterwards c3 is the same for all.
    same = same0 * _MULTIPLIERS[0]
    np.multiply(third, np.uint64(_MULTIPLIERS[1]), out=second)
    _high(second, first, same1 ^ k0)
    np.bitwise_and(second, np.uint64(MASK), out=second)
    np.bitwise_xor(fourth, np.uint64((same >> 32) ^ k1), out=third)
    fourth.fill(same & MASK)
    for left in range(ROUNDS - 3, -1, -1):
        k0, k1 = (k0 + _WEYL[0]) & MASK, (k1 + _WEYL[1]) & MASK
        np.multiply(first, np.uint64(_MULTIPLIERS[0]), out=product0)
        np.multiply(third, np.uint64(_MULTIPLIERS[1]), out=product1)
        _high(product1, first, k0)
        np.bitwise_xor(first, second, out=first)
        _high(product0, third, k1)
        np.bitwise_xor(third, fourth, out=third)
        if left:
            np.bitwise_and(product1, np.uint64(MASK), out=second)
            np.bitwise_and(product0, np.uint64(MASK), out=fourth)
    # The low words are what a shift to the high half keeps.
    for column, word, product in ((0, first, product1), (1, third, product0)):
        np.left_shift(product, np.uint64(32), out=product)
        np.bitwise_or(word, product, out=pairs[:, column])


def _high(product: Words, out: Words, constant: int) -> None:
    """out = (product >> 32) ^ constant."""
    np.right_shift(product, np.uint64(32), out=out)
    np.bitwise_xor(out, np.uint64(constant), out=out)


_local: Final = threading.local()


def _scratch(size: int) -> tuple[Words, ...]:
    """Six arrays of `size`, this thread's own, used again by its next call."""
    memory: Words | None = getattr(_local, "memory", None)
    if memory is None or memory.shape[1] < size:
        memory = _local.memory = np.empty((6, max(size, 1024)), dtype=np.uint64)
    return tuple(row[:size] for row in memory)
