"""A residual's race over tokens of which it isn't known yet which ones top-p keeps, and what lies above a row's edges.

Who wins is decided where the edges' masses are known (ratio/device/decide.py). So of each program the two best tokens
are left, and a bound on the scores of all others: the winner is among these unless more than one token of a program,
better than it, turns out to be dropped.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import field_at, score
from draftproof.kernels.device.passes import WHOLE
from draftproof.kernels.device.ratio import (
    NOTHING_LEFT,
    TILES_AT_ONCE,
    bound_on_score,
    can_be_near,
    residual,
    residual_of,
    tile_ahead,
    words_of,
)
from draftproof.kernels.device.rows import load_places, tiles_of_loaded


@triton.jit
def better_with(bound, rest, k, ids, z, left, other, other_rest, other_k, other_ids, other_z, other_left):
    """Of two tokens (or groups of them) the one of the higher bound, and the highest bound of all others."""
    wins = other > bound
    left = tl.maximum(tl.maximum(left, other_left), tl.minimum(bound, other))
    rest, k, ids = tl.where(wins, other_rest, rest), tl.where(wins, other_k, k), tl.where(wins, other_ids, ids)
    return tl.maximum(bound, other), rest, k, ids, tl.where(wins, other_z, z), left


@triton.jit
def best_two(s1, l1, s2, l2, s3, t1, m1, t2, m2, t3):
    """Of two triples (best score, its lane, the next one's, its lane, the highest of all others): of both together."""
    wins = (t1 > s1) | ((t1 == s1) & (m1 < l1))
    first, lane = tl.where(wins, t1, s1), tl.where(wins, m1, l1)
    loser, loser_lane = tl.where(wins, s1, t1), tl.where(wins, l1, m1)
    second, second_lane = tl.where(wins, t2, s2), tl.where(wins, m2, l2)
    above = second > loser
    third = tl.maximum(tl.maximum(s3, t3), tl.maximum(tl.minimum(second, loser), tl.where(wins, s2, t2)))
    return first, lane, tl.where(above, second, loser), tl.where(above, second_lane, loser_lane), third


@triton.jit
def score_below(left):
    """A score that tokens of a `bound_on_score` of `left` don't exceed."""
    most = left.to(tl.float32) * 1.1920928955078125e-07
    return tl.where(left > NOTHING_LEFT, most + 32.0 + 0.0875 + 1e-6 * tl.abs(most), -float("inf"))


@triton.jit
def units_above(z, weights, edge):
    """[N] int64: what each eight of [N, 8] tokens weigh of those from `edge` on, a float32 sum, in units of 2^-43."""
    return (tl.sum(tl.where(z >= edge, weights, 0.0), 1).to(tl.float64) * WHOLE).to(tl.int64)


@triton.jit
def added(a0, a1, a2, a3, a4, a5, b0, b1, b2, b3, b4, b5):
    """Six sums at once."""
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5


@triton.jit
def race_and_weigh(row, tile_max, first, last, shape, noise, law, edges, node, bonus, weighs, TILE: tl.constexpr,
                   LAW: tl.constexpr, STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """((score, id, logit, what a change of the law's mass does to it) [TILE / 8] each, the highest score of all others,
    units above each of six edges) of the residual's race over tiles `first` to `last` - 1.

    Scores and order as in `race_tiles`. law: of all tokens from the lowest edge on. weighs: whether edges are asked.
    """
    EIGHTHS: tl.constexpr = TILE // 8
    bound = tl.full((EIGHTHS,), NOTHING_LEFT, tl.int32)
    left, best_ids = bound, tl.zeros((EIGHTHS,), tl.int32)
    best_rest, best_k = tl.zeros((EIGHTHS,), tl.float32), tl.zeros((EIGHTHS,), tl.uint32)
    best_z = tl.full((EIGHTHS,), -float("inf"), tl.float32)
    m0 = tl.zeros((EIGHTHS,), tl.int64)
    m1, m2, m3, m4, m5 = m0, m0, m0, m0, m0
    width = tl.where(bonus == 0, node[2], 0)
    coming = tile_ahead(row, first, first < last, shape, node, width, TILE, LAW, STEPS, HAS_ALLOWED, False)
    reach = tl.load(tile_max + first, mask=first < last, other=-float("inf"))
    next_reach = tl.load(tile_max + first + 1, mask=first + 1 < last, other=-float("inf"))
    for tile in range(first, last):
        ahead, asks = coming, reach >= law[2]
        coming = tile_ahead(row, tile + 1, (tile + 1 < last) & (next_reach >= law[2]), shape, node, width, TILE, LAW,
                            STEPS, HAS_ALLOWED, False)  # fmt: skip
        reach = next_reach
        next_reach = tl.load(tile_max + tile + 2, mask=tile + 2 < last, other=-float("inf"))
        if asks:
            z, ids = tiles_of_loaded(row, tl.full((1,), 0, tl.int32) + tile, ahead[0], shape[0], shape[1], shape[2],
                                     TILE, HAS_ALLOWED, False)  # fmt: skip
            rest = residual_of(z, ids, ahead[1], law, node, bonus, LAW)
            k = words_of(tile, ids, shape[1], noise, TILE, False)
            z = tl.reshape(z, (EIGHTHS, 8))
            if weighs:
                weights = tl.exp2(tl.fma(z, law[0], -law[1]))
                m0, m1 = m0 + units_above(z, weights, edges[0]), m1 + units_above(z, weights, edges[1])
                m2, m3 = m2 + units_above(z, weights, edges[2]), m3 + units_above(z, weights, edges[3])
                m4, m5 = m4 + units_above(z, weights, edges[4]), m5 + units_above(z, weights, edges[5])
            none = tl.full((EIGHTHS, 8), NOTHING_LEFT, tl.int32)
            found = tl.reduce(
                (tl.reshape(bound_on_score(rest, k), (EIGHTHS, 8)), tl.reshape(rest, (EIGHTHS, 8)),
                 tl.reshape(k, (EIGHTHS, 8)), tl.reshape(ids, (EIGHTHS, 8)), z, none), 1, better_with)  # fmt: skip
            bound, best_rest, best_k, best_ids, best_z, left = better_with(
                bound, best_rest, best_k, best_ids, best_z, left, found[0], found[1], found[2], found[3], found[4],
                found[5])  # fmt: skip
    low = tl.full((EIGHTHS,), -float("inf"), tl.float32)
    scores = tl.where(best_rest > 0, score(tl.log2(tl.where(best_rest > 0, best_rest, 1.0)), best_k), low)
    best, hidden = tl.max(scores, 0), tl.full((), -float("inf"), tl.float32)
    reach, eighth = tl.max(left, 0), tl.arange(0, EIGHTHS)
    while can_be_near(reach, best):
        # Another token of these eight places may win or come near.
        place = tl.min(tl.where(left == reach, eighth, EIGHTHS), 0)
        at = eighth == place
        taken = tl.max(tl.where(at, best_ids, 0), 0)
        own = tl.max(tl.where(at, scores, low), 0)
        for start in range(first, last, TILES_AT_ONCE):
            mine, mine_id, mine_z, mine_rest, others = scored_with(row, start, last, place, taken, shape, noise, law,
                                                                   node, bonus, TILE, LAW, STEPS,
                                                                   HAS_ALLOWED)  # fmt: skip
            hidden = tl.maximum(hidden, tl.maximum(others, tl.minimum(own, mine)))
            wins = tl.where(at, mine, low) > scores
            scores, best_ids = tl.where(wins, mine, scores), tl.where(wins, mine_id, best_ids)
            best_z, best_rest = tl.where(wins, mine_z, best_z), tl.where(wins, mine_rest, best_rest)
            own = tl.maximum(own, mine)
        best = tl.maximum(best, own)
        left = tl.where(at, NOTHING_LEFT, left)
        reach = tl.max(left, 0)
    share = tl.exp2(tl.fma(best_z, law[0], -law[1])) * law[4]
    slopes = tl.where(best_rest > 0, share / tl.where(best_rest > 0, best_rest, 1.0), 1.0)
    units = tl.reduce((m0, m1, m2, m3, m4, m5), 0, added)
    return (scores, best_ids, best_z, slopes), tl.maximum(hidden, score_below(reach)), units


@triton.jit
def best_scored(best, ids, z, rest, second, other, other_ids, other_z, other_rest, other_second):
    """Of two (score, id, logit, residual, runner-up's score): of both together."""
    wins = (other > best) | ((other == best) & (other_ids < ids))
    second = tl.maximum(tl.maximum(second, other_second), tl.minimum(best, other))
    return (tl.maximum(best, other), tl.where(wins, other_ids, ids), tl.where(wins, other_z, z),
            tl.where(wins, other_rest, rest), second)  # fmt: skip


@triton.jit
def scored_with(row, first, last, place, taken, shape, noise, law, node, bonus, TILE: tl.constexpr, LAW: tl.constexpr,
                STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """(best score, its id, logit and residual, the runner-up's score) of the tokens but `taken` in one eighth, the
    `place`-th, of tiles `first` on, before `last`."""
    at = tl.arange(0, TILES_AT_ONCE * 8)
    tile = first + at // 8
    z, ids = load_places(row, tl.where(tile < last, tile, shape[0]) * TILE + place * 8 + at % 8, shape[0], shape[1],
                         shape[2], TILE, HAS_ALLOWED, False)  # fmt: skip
    rest = residual(z, ids, law, node, bonus, LAW, STEPS)
    low = tl.full(ids.shape, -float("inf"), tl.float32)
    raised = score(tl.log2(tl.where(rest > 0, rest, 1.0)), field_at(ids, noise))
    scores = tl.where((rest > 0) & (ids != taken), raised, low)
    return tl.reduce((scores, ids, z, rest, low), 0, best_scored)


@triton.jit
def store_contenders(contenders, hidden, units, racers, request, split, EIGHTHS: tl.constexpr,
                     SPLITS: tl.constexpr):  # fmt: skip
    """Writes what `race_and_weigh` returns of one split.

    racers: (scores, logits, slopes [requests, 2, SPLITS], ids, others' scores [requests, SPLITS], how many programs
    have ended [requests], units [requests, 8, SPLITS]).
    """
    scores, ids, z, slopes = contenders
    lane = tl.arange(0, EIGHTHS)
    low = tl.full((EIGHTHS,), -float("inf"), tl.float32)
    first, lane1, second, lane2, third = tl.reduce((scores, lane, low, lane, low), 0, best_two)
    place = request * (2 * SPLITS) + split
    for which in tl.static_range(2):
        here, at = place + which * SPLITS + 0 * lane, lane == (lane2 if which else lane1)
        tl.store(racers[0] + here, scores, mask=at)
        tl.store(racers[1] + here, z, mask=at)
        tl.store(racers[2] + here, slopes, mask=at)
        tl.store(racers[3] + here, ids, mask=at)
    tl.store(racers[4] + request * SPLITS + split, tl.maximum(third, hidden))
    for edge in tl.static_range(6):
        tl.store(racers[6] + (request * 8 + edge) * SPLITS + split, units[edge])
