"""The keyed field on the device: the integers of `draftproof.noise`, and a token's score in the race.

Layout version 1: Philox4x32-7 with counter (token id // 4, position, sample index, word) and lane token id % 4.

A token's score is y - log2 E in base 2: y = z / (T log 2), E = -log(1 - v), v = (k + 1/2) / 2^32. The race's winner
has the largest score. Most tokens can't win, and finding that out needs no logarithm: since E >= v and
log2(1 + m) >= m, the exponent and mantissa bits of float(k), read as a fixed-point number, bound -log2 E from above by
at most .0861 too much (`screened`). It is asked of a quad at once, with its largest logit and its smallest word; which
quads are scored is race.py's.
"""

import triton
import triton.language as tl

SHIFT = tl.constexpr(159.0)  # 32 for the scale of v, 127 for the exponent's bias
NEAR = tl.constexpr(3e-5)  # what float32 scores can be wrong by, in bits; closer ones are settled in float64
NEAR_SHARE = tl.constexpr(5e-7)  # the same, as a share of the score: y is a rounded product


@triton.jit
def philox4(block, position, sample_index, word, key_low, key_high):
    """Four uint32 words for each `block` (uint32, any shape); the other counter words and the key are scalars."""
    c0, c1, c2, c3 = block, position, sample_index, word
    k0, k1 = key_low, key_high
    for _ in tl.static_range(7):
        product0, product2 = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        # What is the same for all blocks is joined first, once.
        c0, c2 = (product2 >> 32).to(tl.uint32) ^ (c1 ^ k0), (product0 >> 32).to(tl.uint32) ^ (c3 ^ k1)
        c1, c3 = product2.to(tl.uint32), product0.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def field_at(token_ids, noise):
    """The uint32 words of tokens, one Philox call each. noise: (position, sample index, word, key low, key high)."""
    c0, c1, c2, c3 = philox4((token_ids // 4).to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
    lane = token_ids % 4
    return tl.where(lane == 0, c0, tl.where(lane == 1, c1, tl.where(lane == 2, c2, c3)))


@triton.jit
def screened(z, scale, k):
    """An upper bound of z * scale - log2 E, less SHIFT. Up to 1e-4 of rounding is the caller's slack to give.

    The bits of float(k) are read as 2^23 + bits / 2^8 by putting them into a mantissa: no second conversion.
    """
    bits = k.to(tl.float32).to(tl.int32, bitcast=True)
    raised = ((bits >> 8) | 0x4B000000).to(tl.float32, bitcast=True)
    return tl.fma(raised, -3.0517578125e-05, tl.fma(z, scale, 256.0))


@triton.jit
def score(y, k):
    """y - log2 E in float32, within NEAR + NEAR_SHARE |y|."""
    v = (k.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = v * (1 + v * (0.5 + v * (0.33333334 + v * (0.25 + v * (0.2 + v * 0.16666667)))))
    rest = ((k ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    return y - tl.log2(tl.where(v < 0.125, series, -tl.log(rest)))


@triton.jit
def exact_score(z, reference, temperature, k):
    """(z - reference) / T - log E in float64, for what float32 can't order."""
    rest = ((k ^ 0xFFFFFFFF).to(tl.float64) + 0.5) * 2.3283064365386963e-10
    gap = (z.to(tl.float64) - reference.to(tl.float64)) / temperature.to(tl.float64)
    return gap - tl.log(-tl.log(rest))


@triton.jit
def nearness(best):
    """How far below the best score another may be and still win."""
    return NEAR + NEAR_SHARE * tl.abs(best)


@triton.jit
def uniform(word, noise):
    """A coin's uniform in float64: (k + 1/2) / 2^52. noise: as in field_at, `word` in place of its own."""
    zero = (word * 0).to(tl.uint32)
    high, low, unused2, unused3 = philox4(zero, noise[0], noise[1], word.to(tl.uint32), noise[3], noise[4])
    k = (high.to(tl.int64) << 20) | (low >> 12).to(tl.int64)
    return (k.to(tl.float64) + 0.5) * 2.220446049250313e-16
