"""Which token wins a race, by what its row weighs above each edge: top-p ends somewhere between two of them.

A token is surely kept from the upper one on and surely dropped below the lower one, and the kept mass is what top-p
wants, or more by at most what a token at the upper edge weighs. So the best contender from the lower edge on wins if it
is kept, whatever the mass is in there. Whether a token between the two edges is kept is asked of the row, as are the
end and all scores where this doesn't tell either.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import keep_of_row
from draftproof.kernels.device.brackets import EDGES
from draftproof.kernels.device.contenders import added, best_scored
from draftproof.kernels.device.edges import ASKED, KEPT_MASS, LEAST, MOST, WIDTH
from draftproof.kernels.device.noise import nearness
from draftproof.kernels.device.passes import WHOLE, count_and_mass, list_tiles
from draftproof.kernels.device.ratio import POINT, race_all, race_tiles
from draftproof.kernels.device.rows import above, level
from draftproof.kernels.ratio.device.few import list_tokens, race_list


@triton.jit
def interval_above(edges, racers, request, num_splits, SPLITS: tl.constexpr):
    """(low, high, units from low on): the last kept token has low <= z < high. edges: of `law_and_edges`."""
    split = tl.arange(0, SPLITS)
    at, raced = racers[6] + request * (8 * SPLITS) + split, split < num_splits
    units = tl.reduce(
        (tl.load(at, mask=raced, other=0), tl.load(at + SPLITS, mask=raced, other=0),
         tl.load(at + 2 * SPLITS, mask=raced, other=0), tl.load(at + 3 * SPLITS, mask=raced, other=0),
         tl.load(at + 4 * SPLITS, mask=raced, other=0), tl.load(at + 5 * SPLITS, mask=raced, other=0)), 0,
        added)  # fmt: skip
    low, high = edges[1], edges[2]
    kept = tl.full((), 4611686018427387904, tl.int64)
    for edge in tl.static_range(EDGES):
        reached = units[edge] >= edges[3]
        low = tl.where(reached, tl.maximum(low, edges[0][edge]), low)
        kept = tl.where(reached, tl.minimum(kept, units[edge]), kept)
        high = tl.where(reached, high, tl.minimum(high, edges[0][edge]))
    return low, high, kept


@triton.jit
def law_and_edges(row_index, scale, rows, bracket, vocab_size):
    """(a row's law as ratio.py takes it, for all tokens that may be kept; (its edges, the least and the most that its
    last kept token may be, the units that are to be kept, whether it is asked, its total, its largest logit)).

    A row that isn't asked keeps all that is raced.
    """
    edges = bracket[0] + WIDTH * row_index
    low, high = tl.load(edges + LEAST), tl.load(edges + MOST)
    e0, e1, e2 = tl.load(edges), tl.load(edges + 1), tl.load(edges + 2)
    e3, e4, e5 = tl.load(edges + 3), tl.load(edges + 4), tl.load(edges + 5)
    asked = tl.load(edges + ASKED) > 0
    wanted = tl.load(bracket[1] + WIDTH * row_index + KEPT_MASS)
    total, largest = tl.load(rows[5] + row_index), tl.load(rows[4] + row_index)
    z_bound, id_bound = tl.load(rows[2] + row_index), tl.load(rows[3] + row_index)
    gain = (1.0 / tl.load(rows[6] + row_index)).to(tl.float32)
    each = (within(e0, low, high), within(e1, low, high), within(e2, low, high), within(e3, low, high),
            within(e4, low, high), within(e5, low, high))  # fmt: skip
    law = (scale, level(largest, scale), tl.where(asked, each[0], z_bound), tl.where(asked, vocab_size, id_bound), gain)
    return law, (each, low, high, wanted, asked, total, largest)


@triton.jit
def within(edge, low, high):
    """An edge, or the limit that it lies beyond."""
    return tl.maximum(tl.minimum(edge, high), low)


@triton.jit
def best_of(scores, ids, z, slopes, counted):
    """(best score of the counted contenders, its id, logit and slope, the highest score of the others)."""
    low = tl.full(scores.shape, -float("inf"), tl.float32)
    return tl.reduce((tl.where(counted, scores, low), ids, z, slopes, low), 0, best_scored)


@triton.jit
def is_near(best, second, slope, least, most):
    """Whether another score, at most `second` at the least mass a law may have, may reach `best` at some mass up to the
    most. slope: p / (p - q) of the best, whose residual falls by more than other ones' at most."""
    share = 1.0 - least / most + 3e-7
    rest = 1.0 - slope * share.to(tl.float32)
    fall = tl.log2(tl.maximum(rest, 1e-30)) - tl.log2(1.0 - share.to(tl.float32))
    fall = tl.where(slope == 1.0, 0.0, fall)
    return (second >= best + fall - nearness(best)) | (rest <= 0) | (best == -float("inf"))


@triton.jit
def winner_between(racers, request, num_splits, row, row_index, edges, scratch, shape, noise, law, node, bonus,
                   TILE: tl.constexpr, TILES: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr,
                   SPLITS: tl.constexpr, LIST: tl.constexpr, KEY_SHIFT: tl.constexpr,
                   HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """The id that wins a request's race. edges: of `law_and_edges`."""
    place = tl.arange(0, 2 * SPLITS)
    raced = place % SPLITS < num_splits
    at = request * (2 * SPLITS) + place
    scores = tl.load(racers[0] + at, mask=raced, other=-float("inf"))
    z = tl.load(racers[1] + at, mask=raced, other=-float("inf"))
    slopes = tl.load(racers[2] + at, mask=raced, other=1.0)
    ids = tl.load(racers[3] + at, mask=raced, other=shape[2])
    split = tl.arange(0, SPLITS)
    hidden = tl.load(racers[4] + request * SPLITS + split, mask=split < num_splits, other=-float("inf"))
    unseen = tl.max(hidden, 0)
    low, high, from_low = interval_above(edges, racers, request, num_splits, SPLITS)
    wanted, asked, total = edges[3], edges[4], edges[5]
    low, high = tl.where(asked, low, -float("inf")), tl.where(asked, high, -float("inf"))
    scale, top = law[0], law[1]
    needed = wanted.to(tl.float64) / WHOLE
    last = tl.exp2(tl.fma(high, scale, -top)).to(tl.float64)
    most_mass = tl.minimum(tl.minimum(needed + last, from_low.to(tl.float64) / WHOLE), total) * (1.0 + 1e-6)
    least_mass = needed * (1.0 - 1e-6)
    if (bonus > 0) | (LAW == POINT) | (asked == 0):
        # Scores all rise or fall by the same.
        slopes, least_mass, most_mass = 0.0 * slopes + 1.0, tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
    tile_max, tiles = scratch[0] + row_index * TILES, scratch[5] + row_index * TILES
    best, winner, own_z, slope, second = best_of(scores, ids, z, slopes, z >= low)
    unsure = is_near(best, tl.maximum(second, unseen), slope, least_mass, most_mass)
    unsure = unsure | (asked & (law[2] > low))
    # What ranks before a token weighs no more than the row less the token.
    own = tl.exp2(tl.fma(own_z, scale, -top)).to(tl.float64)
    dropped = tl.full((), 0, tl.int32) != 0
    if (unsure == 0) & (own_z < high) & (total - own >= needed * 0.99999):
        num_listed = list_tiles(tiles, tile_max, shape[0], own_z, TILES)
        count, mass = count_and_mass(row, tiles, num_listed, shape, scale, top, own_z, winner, 1, TILE, HAS_ALLOWED,
                                     False)  # fmt: skip
        dropped = mass >= needed
    list_z, list_ids = scratch[6] + row_index * LIST, scratch[7] + row_index * LIST
    num_found = tl.zeros((), tl.int32)
    if asked & (unsure | dropped):
        num_found = list_tokens(row, tiles, tile_max, shape, low, list_z, list_ids, TILE, TILES, LIST,
                                HAS_ALLOWED)  # fmt: skip
    if dropped & (num_found == 0):
        # So is all that ranks after it. Between it and `high` nothing may be better.
        before = above(z, ids, own_z, winner)
        best, winner, own_z, slope, second = best_of(scores, ids, z, slopes, (z >= high) & before)
        second = tl.max(tl.where(before & (ids != winner), scores, -float("inf")), 0)
        unsure = is_near(best, tl.maximum(second, unseen), slope, least_mass, most_mass)
    if unsure | (num_found > 0):
        z_bound, id_bound, gain = law[2], law[3], law[4]
        if num_found > 0:
            z_bound, id_bound, mass = keep_of_row(row, tiles, tile_max, shape, scale, top, edges[6], low, 0, 0.5, TILES,
                                                  1, TILE, KEY_SHIFT, HAS_ALLOWED, False,
                                                  listed=(list_z, list_ids, num_found), wanted=needed,
                                                  z_most=tl.minimum(high, edges[6]))  # fmt: skip
            gain = (1.0 / mass).to(tl.float32)
        elif asked:
            z_bound, id_bound, mass = keep_of_row(row, tiles, tile_max, shape, scale, top, edges[6], low, 0, 0.5, TILES,
                                                  1, TILE, KEY_SHIFT, HAS_ALLOWED, False, wanted=needed,
                                                  z_most=tl.minimum(high, edges[6]))  # fmt: skip
            gain = (1.0 / mass).to(tl.float32)
        exact = (scale, top, z_bound, id_bound, gain)
        if num_found > 0:
            best, winner, second = race_list(list_z, list_ids, num_found, noise, shape[2], exact, node, bonus, LAW,
                                             STEPS)  # fmt: skip
        else:
            best, winner, second = race_tiles(row, tile_max, 0, shape[0], shape, noise, exact, node, bonus, TILE, LAW,
                                              STEPS, HAS_ALLOWED, False)  # fmt: skip
        if (second >= best - nearness(best)) | (best == -float("inf")):
            # An empty residual comes of rounding alone, and the token is then drawn from the target's law.
            draws_target = tl.maximum(bonus, (best == -float("inf")).to(tl.int32))
            winner = race_all(row, shape, noise, exact, node, draws_target, TILE, LAW, STEPS, HAS_ALLOWED,
                              False)  # fmt: skip
    return winner
