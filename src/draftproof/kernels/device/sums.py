"""The masses of a row's tokens that rank before its contenders, summed by parts of the row, which add them up."""

import triton
import triton.language as tl

from draftproof.kernels.device.rows import above, bits_of_tiles, logits_of_tiles, ordered, tiles_of_loaded, unordered

UNITS = tl.constexpr(1099511627776.0)  # of a mass: 2^40


@triton.jit
def filled_parts(num_tiles, TILES: tl.constexpr, PARTS: tl.constexpr):
    """How many of a row's PARTS have any of its tiles; the last ones have none."""
    return tl.cdiv(num_tiles, TILES // PARTS)


@triton.jit
def add_masses_of_part(row, tile_max, part, shape, scale, top, bounds, masses, TILES: tl.constexpr,
                       GROUP: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                       HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Adds to `masses` [4] one part's of tokens that rank before each of three bounds, in units of 2^-40, and one part.

    bounds: ((logit, id), (logit, id), (logit, id)), the later ones never ranking after the earlier ones.
    Integers, so that the sum over parts is the same however many they are: a row's token must not depend on how many
    rows share its batch. Eight tokens' own sum is float32; a thread's go no further before the end.
    """
    first = part * (TILES // PARTS)
    last = tl.minimum(first + TILES // PARTS, shape[0])
    mass0 = tl.zeros((GROUP, TILE // 8), tl.int64)
    mass1, mass2 = mass0, mass0
    within = tl.arange(0, GROUP)
    coming = coming_tiles(row, tile_max, first + within, last, shape, TILE, HAS_ALLOWED, HAS_SPECIAL)
    for start in range(first, last, GROUP):
        # The next tiles are on their way while these are weighed; nearly all are asked for.
        tile = start + within
        reach, logits, allowed, special = coming
        coming = coming_tiles(row, tile_max, tile + GROUP, last, shape, TILE, HAS_ALLOWED, HAS_SPECIAL)
        most = tl.max(reach, 0)
        if most >= bounds[0][0]:
            z, ids = tiles_of_loaded(row, tile, (logits, allowed, special), shape[0], shape[1], shape[2], TILE,
                                     HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            if GROUP > 1:
                z = tl.where((reach >= bounds[0][0])[:, None], z, -float("inf"))
            weights = tl.exp2(tl.fma(z, scale, -top))
            mass0 += units_before(weights, z, ids, bounds[0], start, shape[1], GROUP, TILE)
            # Contenders' logits are far apart: few tiles that reach the first's reach the others'.
            if most >= bounds[1][0]:
                mass1 += units_before(weights, z, ids, bounds[1], start, shape[1], GROUP, TILE)
                if most >= bounds[2][0]:
                    mass2 += units_before(weights, z, ids, bounds[2], start, shape[1], GROUP, TILE)
    place = tl.arange(0, 4)
    mass0, mass1, mass2 = tl.reduce(tl.reduce((mass0, mass1, mass2), 1, added_up), 0, added_up)
    added = tl.where(place == 3, tl.full((4,), 1, tl.int64), mass0)
    added = tl.where(place == 1, mass1, tl.where(place == 2, mass2, added))
    tl.atomic_add(masses + place, added, mask=added != 0, sem="relaxed")


@triton.jit
def coming_tiles(row, tile_max, tile, last, shape, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                 HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(maxima, logits, allowed bits, special bits) of tiles [G], as memory holds them; of none from `last` on."""
    inside = tile < last
    reach = tl.load(tile_max + tile, mask=inside, other=-float("inf"))
    tile = tl.where(inside, tile, shape[0])
    allowed, special = bits_of_tiles(row, tile, shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    return reach, logits_of_tiles(row, tile, shape[2], TILE), allowed, special


@triton.jit
def added_up(a0, a1, a2, b0, b1, b2):
    """Three sums at once."""
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def units_before(weights, z, ids, bound, start, num_plain, GROUP: tl.constexpr, TILE: tl.constexpr):
    """`units_of_eighths` of the tokens of tiles `start` on that rank before the bound.

    Ids decide only in the tiles that the bound's own token stands in: before them equal logits count, after them they
    don't, and one comparison will do. Not so near 0, which is equal to -0, nor among the exceptions' tiles.
    """
    z_bound, id_bound = bound
    begin, end = start * TILE, (start + GROUP) * TILE
    if ((id_bound >= begin) & (id_bound < end)) | (start + GROUP > num_plain) | (tl.abs(z_bound) < 1e-30):
        units = units_of_eighths(weights, above(z, ids, z_bound, id_bound), GROUP, TILE)
    else:
        least = tl.where(end <= id_bound, z_bound, unordered(ordered(z_bound) + 1))
        units = units_of_eighths(weights, z >= least, GROUP, TILE)
    return units


@triton.jit
def units_of_eighths(weights, counted, GROUP: tl.constexpr, TILE: tl.constexpr):
    """[GROUP, TILE / 8] int64: float32 sums of eight counted weights [GROUP, TILE] each, in units of 2^-40."""
    shares = tl.sum(tl.reshape(tl.where(counted, weights, 0.0), (GROUP, TILE // 8, 8)), 2)
    return (shares.to(tl.float64) * UNITS).to(tl.int64)
