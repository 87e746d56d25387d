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

from draftproof.kernels.device.boundary import keep_by_list, keep_of_row, least_of, load_list
from draftproof.kernels.device.loose import best_known, rescaled, surely_kept_loosely
from draftproof.kernels.device.noise import exact_score, field_at, nearness, score
from draftproof.kernels.device.passes import LANES, count_and_mass, first_at, list_tiles, race_above, settle
from draftproof.kernels.device.rows import above, highest, level

OK = tl.constexpr(0)
NOT_FINITE = tl.constexpr(1)
ALL_MASKED = tl.constexpr(2)

NEAR_MASS = tl.constexpr(1e-5)  # how much of a mass float32 sums can be wrong by, and more

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
    return reach, lowered(reach, mass, scale, largest)


@triton.jit
def lowered(reach, mass, scale, largest):
    """Float64 masses of tiles with maxima `reach`, relative to the row's level."""
    factor = tl.exp2(level(reach, scale) - level(largest, scale))
    return tl.where(reach > -float("inf"), mass.to(tl.float64) * factor.to(tl.float64), 0.0)


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
    best = highest(tl.where(alive, scores, -float("inf")))
    winner = tl.min(tl.where(alive & (scores == best), ids, vocab_size), 0)
    floor = best - nearness(best)
    close = tl.max((alive & (ids != winner) & (scores >= floor)).to(tl.int32), 0)
    unseen = tl.max((thirds >= floor).to(tl.int32), 0)
    winner_z = highest(tl.where(alive & (ids == winner), z, -float("inf")))
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
def draw_of_list(list_z, list_ids, num_found, z_bound, id_bound, noise, scale, temperature, largest, vocab_size):
    """The winner's id among the tokens of a list that rank up to (z_bound, id_bound)."""
    best, runner = tl.full((LANES,), -float("inf"), tl.float32), tl.full((LANES,), -float("inf"), tl.float32)
    best_id = tl.zeros((LANES,), tl.int32)
    for first in range(0, num_found, LANES):
        z, ids, there = load_list(list_z + first, list_ids + first, num_found - first, LANES)
        kept = there & above(z, ids, z_bound, id_bound + 1)
        scores = tl.where(kept, score(z * scale, field_at(ids, noise)), -float("inf"))
        runner = tl.maximum(runner, tl.minimum(best, scores))
        best_id = tl.where(scores > best, ids, best_id)
        best = tl.maximum(best, scores)
    top = highest(best)
    floor = top - nearness(top)
    winner = tl.min(tl.where(best == top, best_id, vocab_size), 0)
    if tl.sum((best >= floor).to(tl.int32) + (runner >= floor).to(tl.int32), 0) > 1:
        exact_best, winner = tl.full((), -float("inf"), tl.float64), tl.zeros((), tl.int32) + vocab_size
        for first in range(0, num_found, LANES):
            z, ids, there = load_list(list_z + first, list_ids + first, num_found - first, LANES)
            words = field_at(ids, noise)
            close = there & above(z, ids, z_bound, id_bound + 1) & (score(z * scale, words) >= floor)
            exact = tl.where(close, exact_score(z, largest, temperature, words), -float("inf"))
            exact_top = tl.max(exact, 0)
            top_id = tl.min(tl.where(close & (exact == exact_top), ids, vocab_size), 0)
            if (exact_top > exact_best) | ((exact_top == exact_best) & (top_id < winner)):
                exact_best, winner = exact_top, top_id
    return winner


@triton.jit
def next_contender(token, z, unsure, racers, num_racers, vocab_size, RACERS: tl.constexpr):
    """The contender that ranks before (token, z); unsure if it is, or if that one was."""
    other, other_z, doubt = contender(racers, num_racers, z, token, vocab_size, RACERS)
    unsure = unsure | doubt
    return tl.where(unsure, token, other), tl.where(unsure, z, other_z), unsure


@triton.jit
def pick_raced(tile_max, tile_mass, racers, special, shape, largest, scale, top, top_p, num_racers,
               RACERS: tl.constexpr, TILES: tl.constexpr, TOP_P: tl.constexpr,
               HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(tokens, their logits, state, mass that top-p wants, what it may be off by, what masses are relative to) of a row
    that was raced over all its tokens. special: (its special tokens' logits before any change, how many there are)."""
    winner, z, unsure = contender(racers, num_racers, -float("inf"), shape[2] + 1, shape[2], RACERS)
    needed, doubt = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    state = tl.where(unsure, LEFT, DRAWN)
    none = tl.full((), -1, tl.int32)
    second, third = none, none
    z1, z2 = z, z
    if TOP_P:
        if (top_p < 1.0) & (unsure == 0):
            if HAS_SPECIAL:
                reach, masses = masses_of(tile_max, tile_mass, shape[0], scale, largest, TILES)
                kept, needed, doubt, most = surely_kept_loosely(reach, masses, special[0], special[1], scale, top,
                                                                top_p, z)  # fmt: skip
                known = best_known(racers, num_racers, RACERS)
                needed, doubt, holds = rescaled(needed, doubt, most, largest, known, scale)
                largest = known
            else:
                kept, needed = surely_kept(tile_max, tile_mass, shape[0], scale, top, largest, top_p, z, TILES)
                holds = tl.full((), True, tl.int1)
            if not kept:
                state = tl.where(holds, SUMMED, LEFT)
                token1, z1, unsure1 = next_contender(winner, z, unsure, racers, num_racers, shape[2], RACERS)
                token2, z2, unsure2 = next_contender(token1, z1, unsure1, racers, num_racers, shape[2], RACERS)
                second, third = tl.where(unsure1, -1, token1), tl.where(unsure2, -1, token2)
    return (winner, second, third), (z, z1, z2), state, needed, doubt, largest


@triton.jit
def pick(row, noise, tiles, tile_max, tile_mass, group_max, groups, racers, special, list_z, list_ids, shape, largest,
         scale, temperature, k, top_p, min_score, num_racers, part, RACERS: tl.constexpr, TILES: tl.constexpr,
         TILE: tl.constexpr, LIST: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr,
         HAS_SPECIAL: tl.constexpr, PACKED: tl.constexpr, KIND: tl.constexpr, EVEN: tl.constexpr, TOP_P: tl.constexpr,
         LISTS: tl.constexpr, LOOSE: tl.constexpr):  # fmt: skip
    """(three tokens, their logits, state, and the last three as in `pick_raced`) of a healthy row; part: which of its
    programs asks.

    TOP_P, LISTS: whether any row of the batch has top-p alone, or top-k or min-p. PACKED, KIND, EVEN,
    LOOSE: as in `keep_by_list`.
    DRAWN: the first token. SUMMED: the first of the tokens whose mass before it, the sum of the parts' masses, is below
    what is wanted; -1 stands for tokens that aren't certain, and LEFT for none.
    """
    top = level(largest, scale)
    none = tl.full((), -1, tl.int32)
    tokens = (none, none, none)
    logits = (0.0 * top, 0.0 * top, 0.0 * top)
    state = tl.full((), DRAWN, tl.int32)
    needed, doubt = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    if temperature == 0:
        if part == 0:
            num_listed = list_tiles(tiles, tile_max, shape[0], largest, TILES)
            winner = first_at(row, tiles, num_listed, shape, largest, 1, TILE, HAS_ALLOWED, HAS_SPECIAL)
            tokens = (winner, none, none)
    elif (k == 0) & (min_score == -float("inf")):
        tokens, logits, state, needed, doubt, largest = pick_raced(
            tile_max, tile_mass, racers, special, shape, largest, scale, top, top_p, num_racers, RACERS, TILES, TOP_P,
            HAS_SPECIAL)  # fmt: skip
    elif LISTS:
        if part == 0:
            z_bound, id_bound, kept_mass, num_found, largest = keep_by_list(
                row, tiles, tile_max, group_max, groups, list_z, list_ids, shape, scale, top, largest, temperature, k,
                top_p, min_score, TILES, TILE, LIST, KEY_SHIFT, HAS_ALLOWED, HAS_SPECIAL, PACKED, KIND, EVEN,
                LOOSE)  # fmt: skip
            winner = none
            if num_found == 0:
                state = tl.full((), LEFT, tl.int32)
            else:
                winner = draw_of_list(list_z, list_ids, num_found, z_bound, id_bound, noise, scale, temperature,
                                      largest, shape[2])  # fmt: skip
            tokens = (winner, none, none)
    return tokens, logits, state, needed, doubt, largest


@triton.jit
def rescue(row, noise, tiles, tile_max, tile_mass, racers, shape, largest, scale, temperature, k, top_p, min_score,
           num_racers, dropped, RACERS: tl.constexpr, TILES: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
           KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
           FILTERS: tl.constexpr):  # fmt: skip
    """The token of a row that `pick` left, by passes over what can matter of it.

    dropped: the last of its contenders that is known to be dropped by top-p, or -1.
    """
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
        if dropped >= 0:
            place = tl.arange(0, 2 * RACERS)
            same = (place % RACERS < num_racers) & (tl.load(racers[1] + place, mask=place % RACERS < num_racers,
                                                            other=-1) == dropped)  # fmt: skip
            z_bound = tl.max(tl.load(racers[2] + place, mask=same, other=-float("inf")), 0)
            id_bound = dropped
    winner = tl.full((), 0, tl.int32)
    going = tl.full((), 1, tl.int32)
    if temperature == 0:
        going = tl.zeros((), tl.int32)
        num_listed = list_tiles(tiles, tile_max, shape[0], largest, TILES)
        winner = first_at(row, tiles, num_listed, shape, largest, GROUP, TILE, HAS_ALLOWED, HAS_SPECIAL)
    while going > 0:
        winner, z, unsure = contender(racers, num_racing, z_bound, id_bound, shape[2], RACERS)
        if unsure:
            num_listed = list_tiles(tiles, tile_max, shape[0], z_bound, TILES)
            best, winner, z, second = race_above(row, tiles, num_listed, shape, noise, scale, z_bound, id_bound, GROUP,
                                                 TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            if second >= best - nearness(best):
                winner, z = settle(row, tiles, num_listed, shape, noise, scale, temperature, z, best - nearness(best),
                                   z_bound, id_bound, 1, TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        going = tl.zeros((), tl.int32)
        if FILTERS:
            if top_p < 1.0:
                kept, needed = surely_kept(tile_max, tile_mass, shape[0], scale, top, largest, top_p, z, TILES)
                if HAS_SPECIAL:
                    kept = tl.full((), False, tl.int1)  # masses hold special tokens'
                if not kept:
                    before, asks = needed, tl.full((), 1, tl.int32)
                    for turn in range(2):
                        if asks > 0:
                            bound = tl.where(turn == 0, z, -float("inf"))
                            num_listed = list_tiles(tiles, tile_max, shape[0], bound, TILES)
                            count, mass = count_and_mass(row, tiles, num_listed, shape, scale, top, bound,
                                                         tl.where(turn == 0, winner, shape[2] + 1), GROUP, TILE,
                                                         HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
                            if turn == 0:
                                before = mass
                                near = (tl.abs(before - needed) <= NEAR_MASS * needed) | HAS_SPECIAL
                                asks = near.to(tl.int32)
                            else:
                                needed = top_p * mass
                    if before >= needed:
                        z_bound, id_bound = z, winner
                        going = tl.full((), 1, tl.int32)
    return winner
