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
from draftproof.kernels.device.rows import larger, level, load_quads, max_or_nan, plain_bits


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
    best = tl.full((), -float("inf"), tl.float32)
    second, third, bound, best_z, second_z = best, best, best, best, best
    best_id = tl.full((), 0, tl.int32)
    second_id = best_id
    faulty = best != best
    measures = (races == 0) | MASS
    none = vocab_size
    if split < num_splits:
        for tile in range(first, tl.minimum(first + tiles_per_split, num_tiles)):
            quad = tile * (TILE // 4) + tl.arange(0, TILE // 4)
            full = (tile + 1) * (TILE // 4) <= num_quads
            z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, full, num_quads, vocab_size, PACKED, KIND, EVEN)
            if HAS_ALLOWED or HAS_SPECIAL:
                bits = plain_bits(row, quad, num_quads, HAS_ALLOWED, HAS_SPECIAL)
                z0 = tl.where((bits & 1) != 0, z0, -float("inf"))
                z1 = tl.where((bits & 2) != 0, z1, -float("inf"))
                z2 = tl.where((bits & 4) != 0, z2, -float("inf"))
                z3 = tl.where((bits & 8) != 0, z3, -float("inf"))
            if measures:
                largest = max_or_nan(larger(larger(z0, z1), larger(z2, z3)))
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
                    a0, a1 = screened(z0 * scale, k0), screened(z1 * scale, k1)
                    a2, a3 = screened(z2 * scale, k2), screened(z3 * scale, k3)
                    reach = max_or_nan(larger(larger(a0, a1), larger(a2, a3)))
                    faulty = faulty | (reach != reach)
                    # Few tokens reach the bound: they are taken one by one, so that the others cost no logarithm.
                    while (reach >= bound) & (reach > -float("inf")):
                        lowest = tl.minimum(
                            tl.minimum(
                                tl.where(a0 == reach, 4 * quad, none), tl.where(a1 == reach, 4 * quad + 1, none)
                            ),
                            tl.minimum(
                                tl.where(a2 == reach, 4 * quad + 2, none), tl.where(a3 == reach, 4 * quad + 3, none)
                            ),
                        )
                        token_id = tl.min(lowest, 0)
                        z = tl.load(row[0] + token_id).to(tl.float32)
                        mine = score(z * scale, field_at(token_id, noise))
                        if mine > best:
                            third, second, second_id, second_z = second, best, best_id, best_z
                            best, best_id, best_z = mine, token_id, z
                        elif mine > second:
                            third, second, second_id, second_z = second, mine, token_id, z
                        else:
                            third = tl.maximum(third, mine)
                        bound = second - SHIFT - 1e-3 - 1e-6 * tl.abs(second)
                        a0 = tl.where(4 * quad == token_id, -float("inf"), a0)
                        a1 = tl.where(4 * quad + 1 == token_id, -float("inf"), a1)
                        a2 = tl.where(4 * quad + 2 == token_id, -float("inf"), a2)
                        a3 = tl.where(4 * quad + 3 == token_id, -float("inf"), a3)
                        reach = tl.max(tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3)), 0)
    elif HAS_SPECIAL:
        for chunk in range(0, tl.cdiv(num_exceptions, TILE)):
            place = chunk * TILE + tl.arange(0, TILE)
            z = tl.load(row[4] + place, mask=place < num_exceptions, other=-float("inf"))
            largest = max_or_nan(z)
            tl.store(tile_max + num_tiles + chunk, largest)
            y = z * scale
            if MASS:
                tl.store(tile_mass + num_tiles + chunk, tl.sum(tl.exp2(tl.fma(z, scale, -level(largest, scale))), 0))
            if RACE:
                if races:
                    ids = tl.load(row[3] + place, mask=place < num_exceptions, other=0)
                    scores = score(y, field_at(ids, noise))
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
    if RACE:
        tl.store(racers[0] + split, tl.where(faulty, float("nan"), best))
        tl.store(racers[0] + RACERS + split, second)
        tl.store(racers[0] + 2 * RACERS + split, third)
        tl.store(racers[1] + split, best_id)
        tl.store(racers[1] + RACERS + split, second_id)
        tl.store(racers[2] + split, best_z)
        tl.store(racers[2] + RACERS + split, second_z)
