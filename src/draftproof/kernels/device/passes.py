"""Passes over what can matter of a row, after the read: only tiles whose maximum reaches a bound are looked at.

Every pass belongs to one program that has a row to itself. `tiles` is a scratch list of the tiles to look at, made by
`list_tiles`. shape: (num_tiles with the exceptions' tiles, num_plain, vocab_size).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import exact_score, field_at, score
from draftproof.kernels.device.rows import above, load_tiles

LANES = tl.constexpr(32)
WHOLE = tl.constexpr(8796093022208.0)  # of a mass: 2^43
UNIT = tl.constexpr(1.1368683772161603e-13)  # 2^-43


@triton.jit
def list_tiles(tiles, tile_max, num_tiles, z_bound, TILES: tl.constexpr):
    """Writes the numbers of the tiles whose maximum is at least `z_bound`; returns how many they are."""
    if TILES > LANES * LANES:
        tile = tl.arange(0, TILES)
        reach = tl.load(tile_max + tile, mask=tile < num_tiles, other=-float("inf"))
        listed = (reach >= z_bound) & (tile < num_tiles) & (reach > -float("inf"))
        num_listed = tl.sum(listed.to(tl.int32), 0)
        tl.debug_barrier()
        tl.store(tiles + tl.cumsum(listed.to(tl.int32), 0) - 1, tile, mask=listed)
    else:
        EACH: tl.constexpr = (TILES + LANES - 1) // LANES
        first = tl.arange(0, LANES) * EACH
        hits, counts = tl.zeros((LANES,), tl.int32), tl.zeros((LANES,), tl.int32)
        for at in tl.static_range(EACH):
            reach = tl.load(tile_max + first + at, mask=first + at < num_tiles, other=-float("inf"))
            hit = ((reach >= z_bound) & (reach > -float("inf"))).to(tl.int32)
            hits |= hit << at
            counts += hit
        place, num_listed = places_of(counts, tl.zeros((), tl.int32))
        tl.debug_barrier()
        while tl.max((hits != 0).to(tl.int32), 0) > 0:
            tl.store(tiles + place, first + lowest_bit(hits), mask=hits != 0)
            place, hits = place + 1, hits & (hits - 1)
    tl.debug_barrier()
    return num_listed


@triton.jit
def read_group(row, tiles, start, num_listed, shape, GROUP: tl.constexpr, TILE: tl.constexpr,
               HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(z, ids), [GROUP, TILE] each, of the listed tiles from `start` on."""
    place = start + tl.arange(0, GROUP)
    tile = tl.load(tiles + place, mask=place < num_listed, other=shape[0])
    return load_tiles(row, tile, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)


@triton.jit
def whole(weight):
    """Float32 weights in whole units of 2^-43: their sums are exact in int64, so no order of summing tells in them.

    A filter's decision has to be a function of its row's tokens alone: not of how many programs have read them, and not
    of which are listed apart for a penalty's or a draft's sake. 2^18 tokens lose 2^-25 of the largest weight at most.
    """
    return tl.floor(weight * WHOLE)


@triton.jit
def count_and_mass(row, tiles, num_listed, shape, scale, top, z_bound, id_bound, GROUP: tl.constexpr,
                   TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(how many listed tokens rank before the bound, the sum of their `whole` weights as a float64)."""
    count = tl.zeros((GROUP, TILE), tl.int32)
    mass = tl.zeros((GROUP, TILE), tl.int64)
    for start in range(0, num_listed, GROUP):
        z, ids = read_group(row, tiles, start, num_listed, shape, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
        counted = above(z, ids, z_bound, id_bound)
        count += counted.to(tl.int32)
        mass += tl.where(counted, whole(tl.exp2(tl.fma(z, scale, -top))), 0.0).to(tl.int64)
    return tl.sum(tl.sum(count, 1), 0), tl.sum(tl.sum(mass, 1), 0).to(tl.float64) * UNIT


@triton.jit
def largest_of_row(row, tiles, tile_max, shape, TILES: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
                   HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The largest logit of a row, read again: of the tiles whose maxima may be special tokens'."""
    num_listed = list_tiles(tiles, tile_max, shape[0], -float("inf"), TILES)
    largest = tl.full((GROUP, TILE), -float("inf"), tl.float32)
    for start in range(0, num_listed, GROUP):
        z, ids = read_group(row, tiles, start, num_listed, shape, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
        largest = tl.maximum(largest, z)
    return tl.max(tl.max(largest, 1), 0)


@triton.jit
def first_at(row, tiles, num_listed, shape, z_wanted, GROUP: tl.constexpr, TILE: tl.constexpr,
             HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The lowest id among listed tokens whose logit is `z_wanted`."""
    found = tl.full((GROUP, TILE), 0, tl.int32) + shape[2]
    for start in range(0, num_listed, GROUP):
        z, ids = read_group(row, tiles, start, num_listed, shape, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
        found = tl.minimum(found, tl.where(z == z_wanted, ids, shape[2]))
    return tl.min(tl.min(found, 1), 0)


@triton.jit
def race_above(row, tiles, num_listed, shape, noise, scale, z_bound, id_bound, GROUP: tl.constexpr,
               TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(best score, its id, its logit, the runner-up's score) among listed tokens that rank before the bound."""
    best = tl.full((GROUP, TILE), -float("inf"), tl.float32)
    best_id = tl.zeros((GROUP, TILE), tl.int32)
    best_z = tl.full((GROUP, TILE), -float("inf"), tl.float32)
    runner = tl.full((GROUP, TILE), -float("inf"), tl.float32)
    for start in range(0, num_listed, GROUP):
        z, ids = read_group(row, tiles, start, num_listed, shape, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
        runs = above(z, ids, z_bound, id_bound)
        if tl.max(tl.max(runs.to(tl.int32), 1), 0) > 0:
            scores = tl.where(runs, score(z * scale, field_at(ids, noise)), -float("inf"))
            better = scores > best
            runner = tl.where(better, best, tl.maximum(runner, scores))
            best_id = tl.where(better, ids, best_id)
            best_z = tl.where(better, z, best_z)
            best = tl.where(better, scores, best)
    return winner_of(best, best_id, best_z, runner, shape[2])


@triton.jit
def winner_of(best, best_id, best_z, runner, vocab_size):
    """(best score, id, logit, runner-up's score) of [A, B] best and runner-up scores."""
    top = tl.max(tl.max(best, 1), 0)
    top_id = tl.min(tl.min(tl.where(best == top, best_id, vocab_size), 1), 0)
    mine = (best == top) & (best_id == top_id)
    top_z = tl.max(tl.max(tl.where(mine, best_z, -float("inf")), 1), 0)
    rest = tl.maximum(tl.where(mine, -float("inf"), best), runner)
    return top, top_id, top_z, tl.max(tl.max(rest, 1), 0)


@triton.jit
def settle(row, tiles, num_listed, shape, noise, scale, temperature, reference, floor, z_bound, id_bound,
           GROUP: tl.constexpr, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(id, logit) of the winner by float64 scores among tokens before the bound whose float32 scores reach `floor`."""
    best = tl.full((), -float("inf"), tl.float64)
    best_id = tl.full((), 0, tl.int32) + shape[2]
    best_z = tl.full((), -float("inf"), tl.float32)
    for start in range(0, num_listed, GROUP):
        z, ids = read_group(row, tiles, start, num_listed, shape, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
        k = field_at(ids, noise)
        runs = above(z, ids, z_bound, id_bound) & (score(z * scale, k) >= floor)
        if tl.max(tl.max(runs.to(tl.int32), 1), 0) > 0:
            scores = tl.where(runs, exact_score(z, reference, temperature, k), -float("inf"))
            top = tl.max(tl.max(scores, 1), 0)
            top_id = tl.min(tl.min(tl.where(scores == top, ids, shape[2]), 1), 0)
            if (top > best) | ((top == best) & (top_id < best_id)):
                best = top
                best_id = top_id
                best_z = tl.max(tl.max(tl.where(runs & (ids == top_id), z, -float("inf")), 1), 0)
    return best_id, best_z


@triton.jit
def places_of(counts, num_found):
    """(where the first of each of [N] `counts` entries goes behind `num_found` others, how many there are then)."""
    return num_found + tl.cumsum(counts, 0) - counts, num_found + tl.sum(counts, 0)


@triton.jit
def lowest_bit(hits):
    """Which bit of [N] int32 words is the lowest that is set; of no meaning where none is."""
    alone = (hits & -hits).to(tl.uint32, bitcast=True)
    return (alone.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
