"""A row's law as one bound: the kept tokens are those that rank up to (z_bound, id_bound), of mass `mass`.

Law: p(v) = 2^(y - top) / mass for kept v, else 0; y = z / (T log 2). Greedy rows keep their argmax alone, of mass 1.

Top-p alone may keep thousands of tokens. Its bound is narrowed down in rounds over all of the row, many programs a row:
each weighs the tokens above 8 pivots, in integers, so that the sum doesn't depend on how many programs there were. The
bracket begins where V tokens weigh less than what may be dropped. What is left of it is listed, part by part, and the
few tokens there are searched.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_by_list, keep_of_row, keep_of_tokens, least_of
from draftproof.kernels.device.draw import UNITS
from draftproof.kernels.device.passes import append, first_at, list_tiles
from draftproof.kernels.device.rows import load_tiles

PIVOTS = tl.constexpr(8)
GROUPED = tl.constexpr(8)  # tiles that are always in one part
AT_ONCE = tl.constexpr(4)  # tiles looked at together


@triton.jit
def pivot(low, high, index):
    """The index-th of 8 pivots of a bracket; 0 is `low` itself."""
    return low + (high - low) * (index * 0.125)


@triton.jit
def first_bracket(largest, scale, top, total, top_p, vocab_size):
    """(low, high): logits between which top-p's last token lies: low <= z < high."""
    spare = (1.0 - top_p) * total / vocab_size
    depth = tl.log2(spare.to(tl.float32)) - 0.01 + top
    low = depth / scale
    low = tl.maximum(low - 1e-5 * tl.abs(low) - 1e-30, -3.4028234663852886e38)
    return tl.minimum(low, largest), largest + tl.abs(largest) * 1e-6 + 1e-30


@triton.jit
def store_bracket(row_index, brackets, largest, scale, top, total, top_p, vocab_size):
    """Stores a row's first bracket; of no meaning for rows without top-p."""
    low, high = first_bracket(largest, scale, top, total, tl.minimum(top_p, 1.0 - 1e-12), vocab_size)
    tl.store(brackets[0] + 2 * row_index, low)
    tl.store(brackets[0] + 2 * row_index + 1, high)
    tl.store(brackets[1] + row_index, 0.0)


@triton.jit
def narrowed(low, high, above_mass, masses, needed, PARTS: tl.constexpr):
    """(low, high, mass at and above high) of the bracket's eighth that holds the last token.

    masses: a pointer to [PARTS, PIVOTS] int64 masses at and above the bracket's pivots.
    """
    index = tl.arange(0, PIVOTS)
    parts = tl.load(masses + tl.arange(0, PARTS)[:, None] * PIVOTS + index[None, :])
    mass = tl.sum(parts, 0).to(tl.float64) / UNITS
    chosen = tl.max(tl.where(mass >= needed, index, 0), 0)
    next_mass = tl.max(tl.where(index == chosen + 1, mass, 0.0), 0)
    is_last = chosen == PIVOTS - 1
    return (
        pivot(low, high, chosen),
        tl.where(is_last, high, pivot(low, high, chosen + 1)),
        tl.where(is_last, above_mass, next_mass),
    )


@triton.jit
def weigh_pivots(row, tile_max, first, last, shape, scale, top, low, high, out, TILE: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Writes masses at and above each pivot in groups `first` to `last` - 1 of 8 tiles, units of 2^-40, to `out`.

    Float32 sums of a few tokens, always the same ones, are added up as integers: the same for any number of parts.
    """
    p1, p2, p3 = pivot(low, high, 1), pivot(low, high, 2), pivot(low, high, 3)
    p4, p5, p6, p7 = pivot(low, high, 4), pivot(low, high, 5), pivot(low, high, 6), pivot(low, high, 7)
    m0 = tl.zeros((TILE // 8,), tl.int64)
    m1, m2, m3, m4, m5, m6, m7 = m0, m0, m0, m0, m0, m0, m0
    for start in range(first * GROUPED, tl.minimum(last * GROUPED, shape[0]), AT_ONCE):
        tile = start + tl.arange(0, AT_ONCE)
        reach = tl.load(tile_max + tile, mask=tile < shape[0], other=-float("inf"))
        if tl.max(reach, 0) >= low:
            z, ids = load_tiles(row, tl.where(reach >= low, tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                                HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            weights = tl.exp2(tl.fma(z, scale, -top))
            m0 += units_at_least(weights, z, low, TILE)
            m1 += units_at_least(weights, z, p1, TILE)
            m2 += units_at_least(weights, z, p2, TILE)
            m3 += units_at_least(weights, z, p3, TILE)
            m4 += units_at_least(weights, z, p4, TILE)
            m5 += units_at_least(weights, z, p5, TILE)
            m6 += units_at_least(weights, z, p6, TILE)
            m7 += units_at_least(weights, z, p7, TILE)
    index = tl.arange(0, PIVOTS)
    masses = tl.where(index == 0, tl.sum(m0, 0), 0) + tl.where(index == 1, tl.sum(m1, 0), 0)
    masses += tl.where(index == 2, tl.sum(m2, 0), 0) + tl.where(index == 3, tl.sum(m3, 0), 0)
    masses += tl.where(index == 4, tl.sum(m4, 0), 0) + tl.where(index == 5, tl.sum(m5, 0), 0)
    masses += tl.where(index == 6, tl.sum(m6, 0), 0) + tl.where(index == 7, tl.sum(m7, 0), 0)
    tl.store(out + index, masses)


@triton.jit
def units_at_least(weights, z, edge, TILE: tl.constexpr):
    """[TILE / 8] int64: weights [AT_ONCE, TILE] of tokens at or above `edge`, in units of 2^-40."""
    shares = tl.reshape(tl.where(z >= edge, weights, 0.0), (AT_ONCE, TILE // 8, 8))
    return (tl.sum(tl.sum(shares, 2), 0).to(tl.float64) * UNITS).to(tl.int64)


@triton.jit
def collect_part(row, tile_max, first, last, shape, low, high, list_z, list_ids, GROUP: tl.constexpr,
                 TILE: tl.constexpr, ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Writes the tokens with low <= z < high in tiles `first` to `last` - 1; returns how many, also beyond ROOM."""
    num_found = tl.zeros((), tl.int32)
    for start in range(first, last, GROUP):
        tile = start + tl.arange(0, GROUP)
        reach = tl.load(tile_max + tile, mask=tile < last, other=-float("inf"))
        z, ids = load_tiles(row, tl.where(reach >= low, tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                            HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        z = tl.reshape(z, (GROUP * TILE,))
        hit = (z >= low) & (z < high) & (z > -float("inf"))
        num_found = append(z, tl.reshape(ids, (GROUP * TILE,)), hit, list_z, list_ids, num_found, ROOM)
    return num_found


@triton.jit
def keep_of_parts(list_z, list_ids, counts, vocab_size, scale, top, top_p, total, above_mass, LIST: tl.constexpr,
                  PARTS: tl.constexpr, KEY_SHIFT: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, mass, enough) under top-p, from a bracket's tokens as its parts listed them."""
    ROOM: tl.constexpr = LIST // PARTS
    place = tl.arange(0, LIST)
    there = place % ROOM < tl.load(counts + place // ROOM)
    z = tl.load(list_z + place, mask=there, other=-float("inf"))
    ids = tl.load(list_ids + place, mask=there, other=0)
    # What the list has to supply, as a share of something larger than it.
    share = (top_p * total - above_mass) / (2.0 * total)
    z_bound, id_bound, mass, enough = keep_of_tokens(z, ids, there, vocab_size, scale, top, 0, share, 2.0 * total,
                                                     KEY_SHIFT)  # fmt: skip
    mass += above_mass
    return z_bound, id_bound, mass, enough & (tl.max(tl.load(counts + tl.arange(0, PARTS)), 0) <= ROOM)


@triton.jit
def bound_of_unfiltered(row, tiles, tile_max, shape, scale, top, largest, temperature, total, TILES: tl.constexpr,
                        TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, kept mass) of a healthy row without a filter: all of it, or its argmax alone."""
    z_bound = tl.full((), -float("inf"), tl.float32)
    id_bound = tl.full((), 0, tl.int32) + shape[2]
    mass = tl.zeros((), tl.float64) + total
    if temperature == 0:
        num_listed = list_tiles(tiles, tile_max, shape[0], largest, TILES)
        id_bound = first_at(row, tiles, num_listed, shape, largest, 1, TILE, HAS_ALLOWED, HAS_SPECIAL)
        z_bound = tl.zeros((), tl.float32) + largest
        mass = tl.exp2(tl.fma(largest, scale, -top)).to(tl.float64)
    return z_bound, id_bound, mass


@triton.jit
def bound_of_row(row, tiles, tile_max, group_max, groups, list_z, list_ids, counts, shape, scale, top, largest,
                 temperature, total, k, top_p, min_score, above_mass, TILES: tl.constexpr, GROUP: tl.constexpr,
                 TILE: tl.constexpr, LIST: tl.constexpr, PARTS: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, TOP_P: tl.constexpr,
                 LISTS: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, kept mass) of a healthy row.

    counts: how many tokens of top-p's bracket each part has listed; above_mass: the mass above it.

    TOP_P, LISTS: whether any row of the batch has top-p alone; top-k or min-p.
    """
    z_bound, id_bound, mass = bound_of_unfiltered(row, tiles, tile_max, shape, scale, top, largest, temperature, total,
                                                  TILES, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    if (temperature > 0) & ((k > 0) | (min_score > -float("inf"))):
        if LISTS:
            z_bound, id_bound, mass, num_found = keep_by_list(
                row, tiles, tile_max, group_max, groups, list_z, list_ids, shape, scale, top, largest, temperature, k,
                top_p, min_score, TILES, TILE, LIST, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            if num_found == 0:
                least = least_of(largest, temperature, min_score, KEY_SHIFT)
                z_bound, id_bound, mass = keep_of_row(row, tiles, tile_max, shape, scale, top, largest, least, k, top_p,
                                                      TILES, GROUP, TILE, KEY_SHIFT, HAS_ALLOWED,
                                                      HAS_SPECIAL)  # fmt: skip
    elif TOP_P:
        if (temperature > 0) & (top_p < 1.0):
            z_bound, id_bound, mass, enough = keep_of_parts(
                list_z, list_ids, counts, shape[2], scale, top, top_p, total, above_mass, LIST, PARTS,
                KEY_SHIFT)  # fmt: skip
            if not enough:
                z_bound, id_bound, mass = keep_of_row(
                    row, tiles, tile_max, shape, scale, top, largest, tl.full((), -float("inf"), tl.float32), 0, top_p,
                    TILES, GROUP, TILE, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    return z_bound, id_bound, mass
