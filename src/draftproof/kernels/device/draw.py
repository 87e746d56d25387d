"""A row's token: the winner of its race among what the filters keep.

A row without top-k and min-p has been raced over all tokens while it was read. Its winner is the token unless top-p
drops it, which is so iff the mass before it reaches top_p: so only that is asked, and bounds answer without a pass
where they can. Where it is dropped, all that ranks after it is dropped with it, and the next contender is asked.
Other rows find what the filters keep among the few tokens above their k-th tile, and race these.

`pick` settles a row where this is cheap, part by part in parallel. What is left (near ties of float32 scores, dropped
winners, filters that keep more than a list holds) is left to `rescue`, for rows that a walk comes to.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_by_list, keep_of_row, least_of
from draftproof.kernels.device.noise import exact_score, field_at, nearness, score
from draftproof.kernels.device.passes import count_and_mass, first_at, list_tiles, race_above, settle
from draftproof.kernels.device.rows import above, level, load_tiles

OK = tl.constexpr(0)
NOT_FINITE = tl.constexpr(1)
ALL_MASKED = tl.constexpr(2)

UNITS = tl.constexpr(1099511627776.0)  # of a mass: 2^40

DRAWN = tl.constexpr(0)
SUMMED = tl.constexpr(1)
LEFT = tl.constexpr(2)


@triton.jit
def health(largest):
    """OK, NOT_FINITE (NaN or an infinite logit) or ALL_MASKED, from a row's largest logit."""
    bad = (largest != largest) | (largest == float("inf"))
    return tl.where(bad, NOT_FINITE, tl.where(largest == -float("inf"), ALL_MASKED, OK))


@triton.jit
def masses_of(tile_max, tile_mass, num_tiles, scale, largest, TILES: tl.constexpr):
    """(maxima [TILES], float64 masses [TILES] relative to the row's level) of the tiles."""
    tile = tl.arange(0, TILES)
    inside = tile < num_tiles
    reach = tl.load(tile_max + tile, mask=inside, other=-float("inf"))
    mass = tl.load(tile_mass + tile, mask=inside, other=0.0)
    lowered = tl.exp2(level(reach, scale) - level(largest, scale))
    return reach, tl.where(reach > -float("inf"), mass.to(tl.float64) * lowered.to(tl.float64), 0.0)


@triton.jit
def contender(racers, num_racers, z_bound, id_bound, vocab_size, RACERS: tl.constexpr):
    """(id, logit, unsure) of the best racer that ranks before the bound; unsure: another may be as good, or unseen."""
    place = tl.arange(0, 2 * RACERS)
    inside = place % RACERS < num_racers
    scores = tl.load(racers[0] + place, mask=inside, other=-float("inf"))
    ids = tl.load(racers[1] + place, mask=inside, other=0)
    z = tl.load(racers[2] + place, mask=inside, other=-float("inf"))
    split = tl.arange(0, RACERS)
    thirds = tl.load(racers[0] + 2 * RACERS + split, mask=split < num_racers, other=-float("inf"))
    alive = above(z, ids, z_bound, id_bound) & (scores > -float("inf"))
    best = tl.max(tl.where(alive, scores, -float("inf")), 0)
    winner = tl.min(tl.where(alive & (scores == best), ids, vocab_size), 0)
    floor = best - nearness(best)
    close = tl.max((alive & (ids != winner) & (scores >= floor)).to(tl.int32), 0)
    unseen = tl.max((thirds >= floor).to(tl.int32), 0)
    winner_z = tl.max(tl.where(alive & (ids == winner), z, -float("inf")), 0)
    return winner, winner_z, (close + unseen > 0) | (best == -float("inf"))


@triton.jit
def surely_kept(tile_max, tile_mass, num_tiles, scale, top, largest, top_p, z, TILES: tl.constexpr):
    """(whether bounds show that a token of logit z is kept by top-p, the mass that top-p wants).

    The mass before a token is at most the whole less its own, and at most that of the tiles that reach its logit. Both
    bounds leave a margin for the rounding of float32 sums.
    """
    reach, masses = masses_of(tile_max, tile_mass, num_tiles, scale, largest, TILES)
    total = tl.sum(masses, 0)
    needed = top_p * total
    own = tl.exp2(tl.fma(z, scale, -top)).to(tl.float64)
    reached = tl.sum(tl.where(reach >= z, masses, 0.0), 0)
    return (own > (1.00001 - top_p) * total) | (reached < needed * 0.99999), needed


@triton.jit
def mass_of_part(row, tile_max, first, last, shape, scale, top, z_bound, id_bound, GROUP: tl.constexpr,
                 TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The mass of tokens that rank before the bound in tiles `first` to `last` - 1, in units of 2^-40.

    Integers, so that the sum over parts is the same however many they are: a row's token must not depend on how many
    rows share its batch. A tile's own sum is float32, in one order.
    """
    mass = tl.zeros((GROUP,), tl.int64)
    for start in range(first, last, GROUP):
        tile = start + tl.arange(0, GROUP)
        reach = tl.load(tile_max + tile, mask=tile < last, other=-float("inf"))
        z, ids = load_tiles(row, tl.where(reach >= z_bound, tile, shape[0]), shape[0], shape[1], shape[2], TILE,
                            HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        weights = tl.where(above(z, ids, z_bound, id_bound), tl.exp2(tl.fma(z, scale, -top)), 0.0)
        mass += (tl.sum(weights, 1).to(tl.float64) * UNITS).to(tl.int64)
    return tl.sum(mass, 0)


@triton.jit
def draw_of_list(list_z, list_ids, num_found, z_bound, id_bound, noise, scale, temperature, largest, vocab_size,
                 LIST: tl.constexpr):  # fmt: skip
    """The winner's id among the tokens of a list that rank up to (z_bound, id_bound)."""
    place = tl.arange(0, LIST)
    z = tl.load(list_z + place, mask=place < num_found, other=-float("inf"))
    ids = tl.load(list_ids + place, mask=place < num_found, other=0)
    words = field_at(ids, noise)
    kept = (place < num_found) & above(z, ids, z_bound, id_bound + 1)
    scores = tl.where(kept, score(z * scale, words), -float("inf"))
    best = tl.max(scores, 0)
    close = kept & (scores >= best - nearness(best))
    winner = tl.min(tl.where(scores == best, ids, vocab_size), 0)
    if tl.sum(close.to(tl.int32), 0) > 1:
        exact = tl.where(close, exact_score(z, largest, temperature, words), -float("inf"))
        winner = tl.min(tl.where(exact == tl.max(exact, 0), ids, vocab_size), 0)
    return winner


@triton.jit
def pick(row, noise, tiles, tile_max, tile_mass, racers, list_z, list_ids, shape, largest, scale, temperature, k, top_p,
         min_score, num_racers, part, part_mass, RACERS: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr,
         TILE: tl.constexpr, LIST: tl.constexpr, KEY_SHIFT: tl.constexpr, PARTS: tl.constexpr,
         HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, TOP_P: tl.constexpr, LISTS: tl.constexpr):  # fmt: skip
    """(token, state, mass that top-p wants) of a healthy row, by one of its PARTS programs.

    TOP_P, LISTS: whether any row of the batch has top-p alone, or top-k or min-p.
    SUMMED: the token is kept iff the sum of the parts' masses, one written by each program, is below what is wanted.
    """
    top = level(largest, scale)
    winner = tl.full((), 0, tl.int32)
    state = tl.full((), DRAWN, tl.int32)
    needed = tl.full((), 0.0, tl.float64)
    if temperature == 0:
        if part == 0:
            num_listed = list_tiles(tiles, tile_max, shape[0], largest, TILES)
            winner = first_at(row, tiles, num_listed, shape, largest, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
    elif (k == 0) & (min_score == -float("inf")):
        winner, z, unsure = contender(racers, num_racers, -float("inf"), shape[2] + 1, shape[2], RACERS)
        if unsure:
            state = tl.full((), LEFT, tl.int32)
        elif TOP_P:
            if top_p < 1.0:
                kept, needed = surely_kept(tile_max, tile_mass, shape[0], scale, top, largest, top_p, z, TILES)
                if not kept:
                    state = tl.full((), SUMMED, tl.int32)
                    share: tl.constexpr = TILES // PARTS
                    before = mass_of_part(row, tile_max, part * share, tl.minimum((part + 1) * share, shape[0]), shape,
                                          scale, top, z, winner, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
                    tl.store(part_mass + part, before)
    elif LISTS:
        if part == 0:
            z_bound, id_bound, kept_mass, num_found = keep_by_list(
                row, tiles, tile_max, list_z, list_ids, shape, scale, top, largest, temperature,
                tl.full((), 0.0, tl.float64), k, top_p, min_score, TILES, GROUP, TILE, LIST, KEY_SHIFT, HAS_ALLOWED,
                HAS_SPECIAL)  # fmt: skip
            if num_found > 0:
                winner = draw_of_list(list_z, list_ids, num_found, z_bound, id_bound, noise, scale, temperature,
                                      largest, shape[2], LIST)  # fmt: skip
            else:
                state = tl.full((), LEFT, tl.int32)
    return winner, state, needed


@triton.jit
def rescue(row, noise, tiles, tile_max, tile_mass, racers, shape, largest, scale, temperature, k, top_p, min_score,
           num_racers, RACERS: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
           KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
           FILTERS: tl.constexpr):  # fmt: skip
    """The token of a row that `pick` left, by passes over what can matter of it."""
    top = level(largest, scale)
    z_bound = tl.full((), -float("inf"), tl.float32)
    id_bound = tl.full((), 0, tl.int32) + shape[2] + 1
    num_racing = tl.zeros((), tl.int32) + num_racers
    if FILTERS:
        if (k > 0) | (min_score > -float("inf")):
            least = least_of(largest, temperature, min_score, KEY_SHIFT)
            z_bound, id_bound, kept_mass = keep_of_row(row, tiles, tile_max, shape, scale, top, largest, least, k,
                                                       top_p, TILES, GROUP, TILE, KEY_SHIFT, HAS_ALLOWED,
                                                       HAS_SPECIAL)  # fmt: skip
            id_bound += 1
            top_p = tl.full((), 1.0, tl.float64)
            num_racing = tl.zeros((), tl.int32)
    winner = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    while going > 0:
        winner, z, unsure = contender(racers, num_racing, z_bound, id_bound, shape[2], RACERS)
        if unsure:
            num_listed = list_tiles(tiles, tile_max, shape[0], z_bound, TILES)
            best, winner, z, second = race_above(row, tiles, num_listed, shape, noise, scale, z_bound, id_bound, GROUP,
                                                 TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            if second >= best - nearness(best):
                winner, z = settle(row, tiles, num_listed, shape, noise, scale, temperature, z, best - nearness(best),
                                   z_bound, id_bound, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        going = tl.zeros((), tl.int32)
        if FILTERS:
            if top_p < 1.0:
                kept, needed = surely_kept(tile_max, tile_mass, shape[0], scale, top, largest, top_p, z, TILES)
                if not kept:
                    num_listed = list_tiles(tiles, tile_max, shape[0], z, TILES)
                    num_before, before = count_and_mass(row, tiles, num_listed, shape, scale, top, z, winner, GROUP,
                                                        TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
                    if before >= needed:
                        z_bound, id_bound = z, winner
                        going = tl.full((), 1, tl.int32)
    return winner
