"""A row's law as one bound: the kept tokens are those that rank up to (z_bound, id_bound), of mass `mass`.

Law: p(v) = 2^(y - top) / mass for kept v, else 0; y = z / (T log 2). Greedy rows keep their argmax alone, of mass 1.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_by_list, keep_of_row, least_of
from draftproof.kernels.device.edges import COUNT, KEPT_MASS, LEVEL, SCALE, interval_of
from draftproof.kernels.device.passes import WHOLE, first_at, list_tiles
from draftproof.kernels.device.ties import keep_of_ties
from draftproof.kernels.device.top_p import keep_of_bucket, settled_bracket


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
def bound_of_row(row, tiles, tile_max, group_max, groups, list_z, list_ids, shape, scale, top, largest, temperature,
                 total, k, top_p, min_score, TILES: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
                 LIST: tl.constexpr, KEY_SHIFT: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr,
                 EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                 LISTS: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, kept mass, how many tokens the list has that these were found in, 0 if in none) of a
    healthy row without top-p alone.

    PACKED, KIND, EVEN: as in `load_quads`. LISTS: whether any row of the batch has top-k or min-p.
    """
    z_bound, id_bound, mass = bound_of_unfiltered(row, tiles, tile_max, shape, scale, top, largest, temperature, total,
                                                  TILES, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    num_found = tl.zeros((), tl.int32)
    if LISTS:
        if (temperature > 0) & ((k > 0) | (min_score > -float("inf"))):
            z_bound, id_bound, mass, num_found, _ = keep_by_list(
                row, tiles, tile_max, group_max, groups, list_z, list_ids, shape, scale, top, largest, temperature, k,
                top_p, min_score, TILES, TILE, LIST, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, PACKED, KIND,
                EVEN)  # fmt: skip
            if num_found == 0:
                least = least_of(largest, temperature, min_score, KEY_SHIFT)
                z_bound, id_bound, mass = keep_of_row(row, tiles, tile_max, shape, scale, top, largest, least, k, top_p,
                                                      TILES, GROUP, TILE, KEY_SHIFT, HAS_ALLOWED,
                                                      HAS_SPECIAL)  # fmt: skip
    return z_bound, id_bound, mass, num_found


@triton.jit
def bound_of_top_p(row_index, row, scratch, edges, sums, masses, list_z, places, shape, rows, TILES: tl.constexpr,
                   GROUP: tl.constexpr, TILE: tl.constexpr, ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr,
                   HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, kept mass) of a healthy row with top-p alone.

    edges, sums, list_z, places: as edges.py has them, weighed and listed. masses: scratch, as in buckets.py.
    """
    scale, top = tl.load(edges + SCALE), tl.load(edges + LEVEL)
    wanted, listed = tl.load(sums + KEPT_MASS), tl.load(sums + COUNT)
    low, high, above_units = interval_of(edges, sums)
    count, found, bucket = listed.to(tl.int32), tl.full((), 1, tl.int32), tl.zeros((), tl.int32)
    goal = tl.maximum(wanted - above_units, 1)
    rise = tl.zeros((), tl.float32)
    if listed >= ROOM:
        found, bucket, low, rise, above_units, goal, count = settled_bracket(
            row, shape, scale, top, wanted, low, high, sums, masses, list_z, places, TILE, ROOM, KEY_SHIFT, HAS_ALLOWED,
            HAS_SPECIAL)  # fmt: skip
    z_bound, id_bound = low, tl.zeros((), tl.int32) + shape[2]
    mass, enough = above_units.to(tl.float64) / WHOLE, found == 2
    tile_max, tiles = scratch[0] + row_index * TILES, scratch[5] + row_index * TILES
    if found == 2:
        id_bound, kept_mass = keep_of_ties(row, tile_max, tiles, shape, scale, top, z_bound, count,
                                           goal.to(tl.float64) / WHOLE, TILES, TILE, HAS_ALLOWED,
                                           HAS_SPECIAL)  # fmt: skip
        mass += kept_mass
    if found == 1:
        z_bound, id_bound, kept, enough = keep_of_bucket(row, list_z, places, count, bucket, low, rise, shape, scale,
                                                         top, goal, TILE, ROOM, KEY_SHIFT, HAS_SPECIAL)  # fmt: skip
        mass += kept.to(tl.float64) / WHOLE
    if not enough:
        least = tl.full((), -float("inf"), tl.float32)
        z_bound, id_bound, mass = keep_of_row(
            row, tiles, tile_max, shape, scale, top, tl.load(rows[4] + row_index), least, 0,
            wanted.to(tl.float64) / WHOLE / tl.load(rows[5] + row_index), TILES, GROUP, TILE, KEY_SHIFT, HAS_ALLOWED,
            HAS_SPECIAL)  # fmt: skip
    return z_bound, id_bound, mass
