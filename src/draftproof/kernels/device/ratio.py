"""p and q at given tokens, and what the target has and the draft has not: the residual max(share * p - q, 0).

A node is (draft values at its row, its ids for a sparse law, vocabulary or K, drafted token, level, scale, 1 / mass).
LAW: 0 point mass, 1 logits, 2 probabilities, 3 sparse. A greedy draft from logits is the point mass on its argmax.
A row is as in rows.py; its law is (scale, level, z_bound, id_bound, share / mass).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import has_bit, is_special
from draftproof.kernels.device.noise import exact_score, field_at, nearness, philox4, score
from draftproof.kernels.device.rows import above, load_places, load_tiles

POINT = tl.constexpr(0)
LOGITS = tl.constexpr(1)
PROBS = tl.constexpr(2)
SPARSE = tl.constexpr(3)
NOTHING_LEFT = tl.constexpr(-2147483648)  # a bound of tokens without a residual
TILES_AT_ONCE = tl.constexpr(16)


@triton.jit
def draft_probs(node, ids, LAW: tl.constexpr, STEPS: tl.constexpr):
    """q at `ids` (any shape), float32. STEPS: halvings that search a sparse law's K ids."""
    if LAW == LOGITS:
        inside = (ids >= 0) & (ids < node[2])
        z = tl.load(node[0] + ids, mask=inside, other=-float("inf")).to(tl.float32)
        spread = tl.where(inside, tl.exp2(tl.fma(z, node[5], -node[4])) * node[6], 0.0)
        q = tl.where(node[5] == 0, (ids == node[3]).to(tl.float32), spread)
    elif LAW == PROBS:
        q = tl.load(node[0] + ids, mask=(ids >= 0) & (ids < node[2]), other=0.0)
    elif LAW == SPARSE:
        place = tl.zeros(ids.shape, tl.int32)
        for step in tl.static_range(STEPS):
            further = place + (1 << (STEPS - 1 - step))
            found = tl.load(node[1] + further - 1, mask=further <= node[2], other=-1)
            place = tl.where((found >= 0) & (found < ids), further, place)
        there = place < node[2]
        same = tl.load(node[1] + place, mask=there, other=-1) == ids
        q = tl.load(node[0] + place, mask=there & same & (ids >= 0), other=0.0)
    else:
        q = (ids == node[3]).to(tl.float32)
    return q


@triton.jit
def residual(z, ids, law, node, bonus, LAW: tl.constexpr, STEPS: tl.constexpr):
    """max(share * p - q, 0) at tokens with logits z, float32; share * p itself where `bonus`."""
    kept = above(z, ids, law[2], law[3] + 1) & (z > -float("inf"))
    p = tl.where(kept, tl.exp2(tl.fma(z, law[0], -law[1])) * law[4], 0.0)
    rest = p
    if bonus == 0:
        rest = tl.maximum(p - draft_probs(node, ids, LAW, STEPS), 0.0)
    return rest


@triton.jit
def logit_at(row, token_id, shape, num_exceptions, TILE: tl.constexpr, HAS_ALLOWED: tl.constexpr,
             HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The processed logit of one token; -inf where it is masked or outside the vocabulary."""
    inside = (token_id >= 0) & (token_id < shape[2])
    there = inside
    if HAS_ALLOWED:
        there = there & has_bit(row[1], token_id, inside)
    if HAS_SPECIAL:
        there = there & ~is_special(row, token_id, inside)
    z = tl.load(row[0] + token_id, mask=there, other=-float("inf")).to(tl.float32)
    if HAS_SPECIAL:
        for start in range(0, num_exceptions, TILE):
            place = start + tl.arange(0, TILE)
            ids = tl.load(row[3] + place, mask=place < num_exceptions, other=-1)
            found = tl.load(row[4] + place, mask=(ids == token_id) & (ids >= 0), other=-float("inf"))
            z = tl.maximum(z, tl.max(found, 0), propagate_nan=tl.PropagateNan.ALL)
    return z


@triton.jit
def bound_on_score(rest, k):
    """log2(rest) - log2 E + 32 in units of 2^-23, from bits alone: at most .0861 below or above, and more where E > v.

    The bits of a float read as a fixed-point number are its log2, too small by at most .0861.
    """
    bits = rest.to(tl.int32, bitcast=True) - k.to(tl.float32).to(tl.int32, bitcast=True)
    return tl.where(rest > 0, bits, NOTHING_LEFT)


@triton.jit
def race_tiles(row, tile_max, first, last, shape, noise, law, node, bonus, TILE: tl.constexpr, LAW: tl.constexpr,
               STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(best score, its id, runner-up's score) of the residual's race over tiles `first` to `last` - 1.

    Score: log2(residual) - log2 E in float32. The runner-up is known if float32 can't tell it from the best; else it is
    below that. While tiles are read, four tokens a Philox call, each place in a tile keeps the highest bound of its
    tokens, and no logarithm is taken. Then the places that can still hold the best, or one near it, are scored, all
    their tokens at once.
    """
    highest = tl.full((1, TILE), NOTHING_LEFT, tl.int32)
    for tile in range(first, last):
        if tl.load(tile_max + tile) >= law[2]:
            z, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + tile, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED,
                                HAS_SPECIAL)  # fmt: skip
            rest = residual(z, ids, law, node, bonus, LAW, STEPS)
            quad = tile * (TILE // 4) + tl.arange(0, TILE // 4)
            k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
            k = tl.reshape(tl.join(tl.join(k0, k2), tl.join(k1, k3)), (1, TILE))
            if HAS_SPECIAL:
                if tile >= shape[1]:
                    k = field_at(ids, noise)
            highest = tl.maximum(highest, bound_on_score(rest, k))
    best = tl.full((), -float("inf"), tl.float32)
    second = best
    best_id = tl.full((), 0, tl.int32) + shape[2]
    place = tl.arange(0, TILE)[None, :]
    reach = tl.max(tl.max(highest, 1), 0)
    while can_be_near(reach, best):
        slot = tl.min(tl.min(tl.where(highest == reach, place, TILE), 1), 0)
        for start in range(first, last, TILES_AT_ONCE):
            mine, mine_id, next_best = scored(row, start, last, slot, shape, noise, law, node, bonus, TILE, LAW, STEPS,
                                              HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            wins = (mine > best) | ((mine == best) & (mine_id < best_id))
            second = tl.maximum(tl.maximum(second, next_best), tl.where(wins, best, mine))
            best, best_id = tl.where(wins, mine, best), tl.where(wins, mine_id, best_id)
        highest = tl.where(place == slot, NOTHING_LEFT, highest)
        reach = tl.max(tl.max(highest, 1), 0)
    return best, best_id, second


@triton.jit
def scored(row, first, last, slot, shape, noise, law, node, bonus, TILE: tl.constexpr, LAW: tl.constexpr,
           STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(best score, its id, runner-up's score) of the tokens at place `slot` of tiles `first` on, before `last`."""
    tile = first + tl.arange(0, TILES_AT_ONCE)
    z, ids = load_places(row, tl.where(tile < last, tile, shape[0]) * TILE + slot, shape[0], shape[1], shape[2], TILE,
                         HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    rest = residual(z, ids, law, node, bonus, LAW, STEPS)
    raised = score(tl.log2(tl.where(rest > 0, rest, 1.0)), field_at(ids, noise))
    scores = tl.where(rest > 0, raised, -float("inf"))
    best = tl.max(scores, 0)
    best_id = tl.min(tl.where(scores == best, ids, shape[2]), 0)
    return best, best_id, tl.max(tl.where(ids == best_id, -float("inf"), scores), 0)


@triton.jit
def can_be_near(reach, best):
    """Whether a token of a bound of `reach` can have a score that float32 can't tell from `best`, or a better one.

    Bounds err by .0861 at most either way; a score is at most its bound and that, less 32 for v's scale.
    """
    least = best - nearness(best) - 32.0 - 0.0875 - 1e-6 * tl.abs(best)
    return (reach.to(tl.float32) * 1.1920928955078125e-07 >= least) & (reach > NOTHING_LEFT)


@triton.jit
def race_all(row, shape, noise, law, node, bonus, TILE: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr,
             HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The winner's id by float64 scores over all of the row; shape[2] if nothing is left. For near ties and faults."""
    best = tl.full((), -float("inf"), tl.float64)
    winner = tl.full((), 0, tl.int32) + shape[2]
    one = tl.full((), 1.0, tl.float32)
    for tile in range(0, shape[0]):
        z, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + tile, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED,
                            HAS_SPECIAL)  # fmt: skip
        rest = residual(z, ids, law, node, bonus, LAW, STEPS)
        if tl.max(tl.max(rest, 1), 0) > 0:
            exponent = tl.log(tl.where(rest > 0, rest, 1.0).to(tl.float64))
            scores = tl.where(rest > 0, exponent + exact_score(one, one, one, field_at(ids, noise)), -float("inf"))
            top = tl.max(tl.max(scores, 1), 0)
            top_id = tl.min(tl.min(tl.where(scores == top, ids, shape[2]), 1), 0)
            if (top > best) | ((top == best) & (top_id < winner)):
                best, winner = top, top_id
    return winner


@triton.jit
def residual_mass(row, tile_max, first, last, shape, law, node, TILE: tl.constexpr, LAW: tl.constexpr,
                  STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """The residual's mass over tiles `first` to `last` - 1, in units of 2^-56.

    Float32 sums of 8 tokens, always the same ones, are added up as integers: the same for any split.
    """
    mass = tl.zeros((TILE // 8,), tl.int64)
    for tile in range(first, last):
        if tl.load(tile_max + tile) >= law[2]:
            z, ids = load_tiles(row, tl.full((1,), 0, tl.int32) + tile, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED,
                                HAS_SPECIAL)  # fmt: skip
            rest = tl.reshape(residual(z, ids, law, node, 0, LAW, STEPS), (TILE // 8, 8))
            mass += (tl.sum(rest, 1).to(tl.float64) * 72057594037927936.0).to(tl.int64)
    return tl.sum(mass, 0)
