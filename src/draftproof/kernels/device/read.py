"""The pass over everything: one read of each row, into a maximum and a mass for each tile and a race for each split.

A program of one warp reads the tiles of one split of one row. The mass of a tile is relative to its own maximum, so
nothing is rescaled and nothing overflows, and a row's bits depend on its own data alone.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import (
    SHIFT,
    field_at,
    philox4,
    score,
    screened,
)
from draftproof.kernels.device.rows import (
    larger,
    level,
    load_four,
    load_packed,
    load_quads,
    max_or_nan,
    plain_bits,
    unpack,
)

PART = tl.constexpr(128)  # exceptions that are scored at once


@triton.jit
def ranked(z, ids, scores, found, none):
    """`found` with those of `scores` [N] that reach its third. found: ((three best), (two ids), (two logits)).

    none: an id above all.
    """
    best, second, third = found[0]
    best_id, second_id = found[1]
    best_z, second_z = found[2]
    reach = tl.max(scores, 0)
    while (reach >= third) & (reach > -float("inf")):
        token_id = tl.min(tl.where(scores == reach, ids, none), 0)
        z_of = tl.max(tl.where(ids == token_id, z, -float("inf")), 0)
        if reach > best:
            third, second, second_id, second_z = second, best, best_id, best_z
            best, best_id, best_z = reach, token_id, z_of
        elif reach > second:
            third, second, second_id, second_z = second, reach, token_id, z_of
        else:
            third = tl.maximum(third, reach)
        scores = tl.where(ids == token_id, -float("inf"), scores)
        reach = tl.max(scores, 0)
    return (best, second, third), (best_id, second_id), (best_z, second_z)


@triton.jit
def read_split(row, quads_ptr, noise, scale, races, split, tile_max, tile_mass, racers, RACERS: tl.constexpr,
               num_tiles, tiles_per_split, num_exceptions, vocab_size, num_splits, TILE: tl.constexpr,
               PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr,
               HAS_SPECIAL: tl.constexpr, RACE: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """Reads one split. Pointers are at the row's own entries; the split after the last plain one holds the exceptions.

    scale: log2(e) / T, or 1 at T = 0. races: whether this row's noise is raced here; 0 for all without RACE.
    Writes tile_max (logits, NaN where a tile has one; infinite for raced rows without MASS, which don't ask),
    tile_mass (sum of 2^(y - largest y of the tile)), and for the split its three best scores, the ids and logits of
    the two best. racers: (scores [3, RACERS], ids [2, RACERS], logits [2, RACERS]), pointers.
    """
    num_quads = (vocab_size + 3) // 4
    first = split * tiles_per_split
    low, first_id = tl.full((), -float("inf"), tl.float32), tl.full((), 0, tl.int32)
    found = ((low, low, low), (first_id, first_id), (low, low))
    bound = low
    faulty = low != low
    measures = (races == 0) | MASS
    if split < num_splits:
        last = tl.minimum(first + tiles_per_split, num_tiles)
        end = tl.minimum(last * (TILE // 4), num_quads)
        lane = tl.arange(0, TILE // 4)
        coming = lane.to(tl.int64)
        if PACKED:
            coming = load_packed(quads_ptr, first * (TILE // 4) + lane, first * (TILE // 4) + lane < end, KIND)
        for tile in range(first, last):
            quad = tile * (TILE // 4) + lane
            if PACKED:
                # The next tile is on its way while this one is worked on.
                packed, after = coming, quad + TILE // 4
                coming = load_packed(quads_ptr, after, after < end, KIND)
                z0, z1, z2, z3 = unpack(packed, quad, vocab_size, KIND, EVEN)
            else:
                z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, False, num_quads, vocab_size, PACKED, KIND, EVEN)
            if HAS_ALLOWED or HAS_SPECIAL:
                bits = plain_bits(row, quad, num_quads, HAS_ALLOWED, HAS_SPECIAL)
                z0 = tl.where((bits & 1) != 0, z0, -float("inf"))
                z1 = tl.where((bits & 2) != 0, z1, -float("inf"))
                z2 = tl.where((bits & 4) != 0, z2, -float("inf"))
                z3 = tl.where((bits & 8) != 0, z3, -float("inf"))
            of_quad = larger(larger(z0, z1), larger(z2, z3))
            if measures:
                largest = max_or_nan(of_quad)
                tl.store(tile_max + tile, largest)
                if MASS:
                    top = level(largest, scale)
                    low_half = tl.exp2(tl.fma(z0, scale, -top)) + tl.exp2(tl.fma(z1, scale, -top))
                    high_half = tl.exp2(tl.fma(z2, scale, -top)) + tl.exp2(tl.fma(z3, scale, -top))
                    tl.store(tile_mass + tile, tl.sum(low_half + high_half, 0))
            else:
                tl.store(tile_max + tile, float("inf"))
            if RACE:
                if races:
                    k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
                    bounds = screened(of_quad, scale, tl.minimum(tl.minimum(k0, k1), tl.minimum(k2, k3)))
                    reach = max_or_nan(bounds)
                    faulty = faulty | (reach != reach)
                    # Few quads reach the bound: they are taken one by one, so that the others cost no logarithm.
                    while (reach >= bound) & (reach > -float("inf")):
                        one = tl.min(tl.where(bounds == reach, quad, num_quads), 0)
                        bounds = tl.where(quad == one, -float("inf"), bounds)
                        z, ids = load_four(row, one, vocab_size, HAS_ALLOWED, HAS_SPECIAL)
                        found = ranked(z, ids, score(z * scale, field_at(ids, noise)), found, vocab_size)
                        second = found[0][1]
                        bound = second - SHIFT - 1e-3 - 1e-6 * tl.abs(second)
                        reach = tl.max(bounds, 0)
    elif HAS_SPECIAL:
        for chunk in range(0, tl.cdiv(num_exceptions, TILE)):
            place = chunk * TILE + tl.arange(0, TILE)
            z = tl.load(row[4] + place, mask=place < num_exceptions, other=-float("inf"))
            largest = max_or_nan(z)
            faulty = faulty | (largest != largest)
            tl.store(tile_max + num_tiles + chunk, largest)
            if MASS:
                tl.store(tile_mass + num_tiles + chunk, tl.sum(tl.exp2(tl.fma(z, scale, -level(largest, scale))), 0))
        if RACE:
            if races:
                for start in range(0, num_exceptions, PART):
                    place = start + tl.arange(0, PART)
                    z = tl.load(row[4] + place, mask=place < num_exceptions, other=-float("inf"))
                    ids = tl.load(row[3] + place, mask=place < num_exceptions, other=0)
                    found = ranked(z, ids, score(z * scale, field_at(ids, noise)), found, vocab_size)
    if RACE:
        scores, ids, logits = found
        tl.store(racers[0] + split, tl.where(faulty, float("nan"), scores[0]))
        tl.store(racers[0] + RACERS + split, scores[1])
        tl.store(racers[0] + 2 * RACERS + split, scores[2])
        tl.store(racers[1] + split, ids[0])
        tl.store(racers[1] + RACERS + split, ids[1])
        tl.store(racers[2] + split, logits[0])
        tl.store(racers[2] + RACERS + split, logits[1])
