"""A row's law as one bound: the kept tokens are those that rank up to (z_bound, id_bound), of mass `mass`.

Law: p(v) = 2^(y - top) / mass for kept v, else 0; y = z / (T log 2). Greedy rows keep their argmax alone, of mass 1.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_by_list, keep_of_row, least_of
from draftproof.kernels.device.passes import first_at, list_tiles
from draftproof.kernels.device.ties import keep_of_ties
from draftproof.kernels.device.top_p import keep_of_bracket


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
def bound_of_row(row, tiles, tile_max, group_max, groups, list_z, list_ids, bracket, shape, scale, top, largest,
                 temperature, total, k, top_p, min_score, above_mass, TILES: tl.constexpr, GROUP: tl.constexpr,
                 TILE: tl.constexpr, LIST: tl.constexpr, ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr,
                 HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, TOP_P: tl.constexpr,
                 LISTS: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, kept mass) of a healthy row.

    bracket: (places, how many, found, low) of the tokens of top-p's bracket, as in top_p.py.
    above_mass: the mass above it.
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
            enough = bracket[2] == 2
            z_bound, wanted = bracket[3], top_p * total - above_mass
            if enough:
                id_bound, mass = keep_of_ties(row, tile_max, tiles, shape, scale, top, z_bound, bracket[1], wanted,
                                              TILES, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            if bracket[2] == 1:
                z_bound, id_bound, mass, enough = keep_of_bracket(
                    row, bracket[0], bracket[1], shape, scale, top, wanted, TILE, ROOM, KEY_SHIFT, HAS_ALLOWED,
                    HAS_SPECIAL)  # fmt: skip
            mass += above_mass
            if not enough:
                z_bound, id_bound, mass = keep_of_row(
                    row, tiles, tile_max, shape, scale, top, largest, tl.full((), -float("inf"), tl.float32), 0, top_p,
                    TILES, GROUP, TILE, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    return z_bound, id_bound, mass
