"""Between which two of a row's edges top-p ends, by the masses above each, and which tokens lie there.

Edges are logits near to where a sample says that top-p ends. Programs of one warp share a row by stretches of 1,024
tokens; what they weigh is added up in integers, so that it is the same for any number of programs.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.passes import WHOLE, lowest_bit, places_of
from draftproof.kernels.device.rows import eighths_of_loaded, loaded_eighths

EDGES = tl.constexpr(4)
LEAST = tl.constexpr(8)  # where a row's bracket stands behind its edges,
MOST = tl.constexpr(9)
SCALE = tl.constexpr(10)  # how its weights are made,
LEVEL = tl.constexpr(11)
ASKED = tl.constexpr(12)  # and 1 if it has top-p alone, else 0
COUNT = tl.constexpr(8)  # where the number of listed tokens stands behind the masses,
KEPT_MASS = tl.constexpr(9)  # and the mass that is to be kept
WIDTH = tl.constexpr(16)  # entries of a row in either
STRETCH = tl.constexpr(1024)


@triton.jit
def eighths_of(stretch):
    """[4, 32] the eighths of a stretch: runs of eight tokens, one for each lane and load."""
    return tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :] + stretch * (STRETCH // 8)


@triton.jit
def units_from(z, weights, edge):
    """[32] int64: what each lane's tokens weigh of those from `edge` on, a sum in float32, in units of 2^-43."""
    share = tl.sum(tl.sum(tl.where(z >= edge, weights, 0.0), 2), 0)
    return (share.to(tl.float64) * WHOLE).to(tl.int64)


@triton.jit
def weigh_stretches(row, first, last, coming, shape, edges, sums, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                    HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Adds to `sums` what the tokens of stretches `first` to `last` - 1 weigh from each edge on.

    coming: the first stretch, as `loaded_eighths` has it. edges: [WIDTH] float32, none below the one before it, and
    what stands behind them. sums: [WIDTH] int64, of which masses are in units of 2^-43. Both are pointers.
    """
    scale, top = tl.load(edges + SCALE), tl.load(edges + LEVEL)
    e0, e1, e2, e3 = tl.load(edges), tl.load(edges + 1), tl.load(edges + 2), tl.load(edges + 3)
    m0 = tl.zeros((32,), tl.int64)
    m1, m2, m3 = m0, m0, m0
    for stretch in range(first, last):
        loaded = coming
        coming = loaded_eighths(row, eighths_of(tl.minimum(stretch + 1, last - 1)), shape[2], HAS_ALLOWED, HAS_SPECIAL)
        z = eighths_of_loaded(row, eighths_of(stretch), loaded, shape[0], shape[1], TILE, HAS_ALLOWED, HAS_SPECIAL)
        weights = tl.exp2(tl.fma(z, scale, -top))
        m0, m1 = m0 + units_from(z, weights, e0), m1 + units_from(z, weights, e1)
        m2, m3 = m2 + units_from(z, weights, e2), m3 + units_from(z, weights, e3)
    tl.atomic_add(sums, tl.sum(m0, 0), sem="relaxed")
    tl.atomic_add(sums + 1, tl.sum(m1, 0), sem="relaxed")
    tl.atomic_add(sums + 2, tl.sum(m2, 0), sem="relaxed")
    tl.atomic_add(sums + 3, tl.sum(m3, 0), sem="relaxed")


@triton.jit
def interval_of(edges, sums):
    """(low, high, units from high on): the last of the tokens that are kept has low <= z < high."""
    index = tl.arange(0, EDGES)
    edge, mass = tl.load(edges + index), tl.load(sums + index)
    reached = mass >= tl.load(sums + KEPT_MASS)
    low = tl.max(tl.where(reached, edge, tl.load(edges + LEAST)), 0)
    high = tl.min(tl.where(reached, tl.load(edges + MOST), edge), 0)
    return low, high, tl.max(tl.where(reached, 0, mass), 0)


@triton.jit
def num_bits(words):
    """How many bits of int32 words are set."""
    words -= (words >> 1) & 0x55555555
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    words += words >> 8
    return (words + (words >> 16)) & 63


@triton.jit
def list_stretches(row, first, last, coming, shape, low, high, count, list_z, places, TILE: tl.constexpr,
                   ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Lists the tokens of stretches `first` to `last` - 1 with low <= z < high, in any order. low: finite.

    coming: the first stretch, as `loaded_eighths` has it. count: how many a row's programs have found, which goes on
    counting beyond ROOM. list_z: [ROOM]. places: [ROOM], tile * TILE + place in it. All are pointers. Few are listed,
    so each lane keeps its own as bits of one word.
    """
    lane = tl.arange(0, 32)
    bit = 1 << (tl.arange(0, 4)[:, None, None] * 8 + tl.arange(0, 8)[None, None, :])
    for stretch in range(first, last):
        loaded = coming
        coming = loaded_eighths(row, eighths_of(tl.minimum(stretch + 1, last - 1)), shape[2], HAS_ALLOWED, HAS_SPECIAL)
        z = eighths_of_loaded(row, eighths_of(stretch), loaded, shape[0], shape[1], TILE, HAS_ALLOWED, HAS_SPECIAL)
        hits = tl.sum(tl.sum(tl.where((z >= low) & (z < high), bit, 0), 2), 0)
        if tl.max((hits != 0).to(tl.int32), 0) > 0:
            counts = num_bits(hits)
            begin = tl.atomic_add(count, tl.sum(counts, 0).to(tl.int64), sem="relaxed").to(tl.int32)
            place, end = places_of(counts, begin)
            while tl.max((hits != 0).to(tl.int32), 0) > 0:
                index = lowest_bit(hits)
                there = (hits != 0) & (place < ROOM)
                mine = (index >> 3) * 256 + lane * 8 + (index & 7) + stretch * STRETCH
                tl.store(places + place, mine, mask=there)
                plain = mine < shape[1] * TILE
                own = tl.load(row[0] + mine, mask=there & plain, other=0.0).to(tl.float32)
                if HAS_SPECIAL:
                    extra = mine - shape[1] * TILE
                    own = tl.where(plain, own, tl.load(row[4] + extra, mask=there & (plain == 0), other=0.0))
                tl.store(list_z + place, own, mask=there)
                place, hits = place + 1, hits & (hits - 1)
