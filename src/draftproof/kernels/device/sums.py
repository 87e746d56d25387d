"""The masses of a row's tokens that rank before its contenders, summed by parts of the row."""

import triton
import triton.language as tl

from draftproof.kernels.device.rows import above, bits_of_tiles, logits_of_tiles, ordered, tiles_of_loaded, unordered

UNITS = tl.constexpr(1099511627776.0)  # of a mass: 2^40


@triton.jit
def filled_parts(num_tiles, TILES: tl.constexpr, PARTS: tl.constexpr):
    """How many of a row's PARTS have any of its tiles; the last ones have none."""
    return tl.cdiv(num_tiles, TILES // PARTS)


@triton.jit
def store_masses_of_part(row, tile_max, part, shape, scale, top, bounds, part_mass, TILES: tl.constexpr,
                         GROUP: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                         HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Writes one part's masses of tokens that rank before each of three bounds, in units of 2^-40.

    bounds: ((logit, id), (logit, id), (logit, id)), the later ones never ranking after the earlier ones.
    Integers, so that the sum over parts is the same however many they are: a row's token must not depend on how many
    rows share its batch. Eight tokens' own sum is float32; a thread's go no further before the end.
    """
    first = part * (TILES // PARTS)
    last = tl.minimum(first + TILES // PARTS, shape[0])
    mass0 = tl.zeros((GROUP, TILE // 8), tl.int64)
    mass1, mass2 = mass0, mass0
    within = tl.arange(0, GROUP)
    coming = bits_of_tiles(row, first + within, shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    for start in tl.range(first, last, GROUP, num_stages=4):
        # Three more tiles are on their way while one is weighed; nearly all are asked for.
        tile = start + within
        reach = tl.load(tile_max + tile, mask=tile < last, other=-float("inf"))
        logits = logits_of_tiles(row, tl.where(tile < last, tile, shape[0]), shape[2], TILE)
        allowed, special = coming
        coming = bits_of_tiles(row, tile + GROUP, shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
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
    tl.store(part_mass + part, tl.sum(tl.sum(mass0, 1), 0))
    tl.store(part_mass + PARTS + part, tl.sum(tl.sum(mass1, 1), 0))
    tl.store(part_mass + 2 * PARTS + part, tl.sum(tl.sum(mass2, 1), 0))


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
