"""p and q at given tokens, and what the target has and the draft has not: the residual max(share * p - q, 0).

A node is (draft values at its row, its ids for a sparse law, vocabulary or K, drafted token, level, scale, 1 / mass).
LAW: 0 point mass, 1 logits, 2 probabilities, 3 sparse. A greedy draft from logits is the point mass on its argmax.
A row is as in rows.py; its law is (scale, level, z_bound, id_bound, share / mass).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import has_bit, is_special
from draftproof.kernels.device.noise import exact_score, field_at, nearness, philox4, score
from draftproof.kernels.device.rows import above, load_places, load_tiles, loaded_of_tiles, tiles_of_loaded

POINT = tl.constexpr(0)
LOGITS = tl.constexpr(1)
PROBS = tl.constexpr(2)
SPARSE = tl.constexpr(3)
NOTHING_LEFT = tl.constexpr(-2147483648)  # a bound of tokens without a residual
TILES_AT_ONCE = tl.constexpr(16)


@triton.jit
def draft_probs(node, ids, LAW: tl.constexpr, STEPS: tl.constexpr):
    """q at `ids` (any shape), float32. STEPS: halvings that search a sparse law's K ids."""
    return probs_of_loaded(node, ids, draft_loaded(node, ids, node[2], LAW, STEPS), LAW)


@triton.jit
def draft_loaded(node, ids, width, LAW: tl.constexpr, STEPS: tl.constexpr):
    """What memory has of q at `ids` (any shape), float32 logits or probabilities. width: the node's, or 0 to read
    nothing."""
    inside = (ids >= 0) & (ids < width)
    if LAW == LOGITS:
        loaded = tl.load(node[0] + ids, mask=inside, other=-float("inf")).to(tl.float32)
    elif LAW == PROBS:
        loaded = tl.load(node[0] + ids, mask=inside, other=0.0)
    elif LAW == SPARSE:
        place = tl.zeros(ids.shape, tl.int32)
        for step in tl.static_range(STEPS):
            further = place + (1 << (STEPS - 1 - step))
            found = tl.load(node[1] + further - 1, mask=further <= width, other=-1)
            place = tl.where((found >= 0) & (found < ids), further, place)
        there = place < width
        same = tl.load(node[1] + place, mask=there, other=-1) == ids
        loaded = tl.load(node[0] + place, mask=there & same & (ids >= 0), other=0.0)
    else:
        loaded = tl.zeros(ids.shape, tl.float32)
    return loaded


@triton.jit
def probs_of_loaded(node, ids, loaded, LAW: tl.constexpr):
    """q at `ids`, of what was loaded for it."""
    q = loaded
    if LAW == LOGITS:
        spread = tl.where(loaded > -float("inf"), tl.exp2(tl.fma(loaded, node[5], -node[4])) * node[6], 0.0)
        q = tl.where(node[5] == 0, (ids == node[3]).to(tl.float32), spread)
    elif LAW == POINT:
        q = (ids == node[3]).to(tl.float32)
    return q


@triton.jit
def residual(z, ids, law, node, bonus, LAW: tl.constexpr, STEPS: tl.constexpr):
    """max(share * p - q, 0) at tokens with logits z, float32; share * p itself where `bonus`."""
    return residual_of(
        z, ids, draft_loaded(node, ids, tl.where(bonus == 0, node[2], 0), LAW, STEPS), law, node, bonus, LAW
    )


@triton.jit
def residual_of(z, ids, loaded, law, node, bonus, LAW: tl.constexpr):
    """`residual`, of what was loaded of q."""
    kept = above(z, ids, law[2], law[3] + 1) & (z > -float("inf"))
    p = tl.where(kept, tl.exp2(tl.fma(z, law[0], -law[1])) * law[4], 0.0)
    return tl.where(bonus == 0, tl.maximum(p - probs_of_loaded(node, ids, loaded, LAW), 0.0), p)


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
def better_of(bound, rest, k, ids, left, other, other_rest, other_k, other_ids, other_left):
    """Of two tokens (or groups of them) the one of the higher bound, and the highest bound of all others."""
    wins = other > bound
    left = tl.maximum(tl.maximum(left, other_left), tl.minimum(bound, other))
    rest, k, ids = tl.where(wins, other_rest, rest), tl.where(wins, other_k, k), tl.where(wins, other_ids, ids)
    return tl.maximum(bound, other), rest, k, ids, left


@triton.jit
def winner_of(best, ids, second, left, other, other_ids, other_second, other_left):
    """Of two (score, id, runner-up's score, highest bound of what isn't scored): of both together."""
    wins = (other > best) | ((other == best) & (other_ids < ids))
    second = tl.maximum(tl.maximum(second, other_second), tl.minimum(best, other))
    return tl.maximum(best, other), tl.where(wins, other_ids, ids), second, tl.maximum(left, other_left)


@triton.jit
def words_of(tile, ids, num_plain, noise, TILE: tl.constexpr, HAS_SPECIAL: tl.constexpr):
    """[1, TILE] a tile's tokens' words of the field: four a Philox call where ids are the tile's own."""
    quad = tile * (TILE // 4) + tl.arange(0, TILE // 4)
    k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
    k = tl.reshape(tl.join(tl.join(k0, k2), tl.join(k1, k3)), (1, TILE))
    if HAS_SPECIAL:
        if tile >= num_plain:
            k = field_at(ids, noise)
    return k


@triton.jit
def tile_ahead(row, tile, asks, shape, node, width, TILE: tl.constexpr, LAW: tl.constexpr, STEPS: tl.constexpr,
               HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """What memory has of a tile of the row, and of q there, for `residual_of_tile`; read only where it `asks`.

    width: as `draft_loaded` takes it.
    """
    at = tl.where(asks, tile, shape[0])
    loaded = loaded_of_tiles(row, tl.full((1,), 0, tl.int32) + at, shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    ids = at * TILE + tl.arange(0, TILE)[None, :]
    return loaded, draft_loaded(node, ids, tl.where(asks, width, 0), LAW, STEPS)


@triton.jit
def residual_of_tile(row, tile, ahead, shape, law, node, width, bonus, TILE: tl.constexpr, LAW: tl.constexpr,
                     STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(the residual [1, TILE] of a tile, its tokens' ids)."""
    z, ids = tiles_of_loaded(row, tl.full((1,), 0, tl.int32) + tile, ahead[0], shape[0], shape[1], shape[2], TILE,
                             HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    loaded_q = ahead[1]
    if HAS_SPECIAL:
        if tile >= shape[1]:
            loaded_q = draft_loaded(node, ids, width, LAW, STEPS)
    return residual_of(z, ids, loaded_q, law, node, bonus, LAW), ids


@triton.jit
def race_tiles(row, tile_max, first, last, shape, noise, law, node, bonus, TILE: tl.constexpr, LAW: tl.constexpr,
               STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(best score, its id, runner-up's score) of the residual's race over tiles `first` to `last` - 1.

    Score: log2(residual) - log2 E in float32. The runner-up is known if float32 can't tell it from the best; else it is
    below that. While tiles are looked at, each with the next one on its way, no logarithm is taken: of every eight
    places, over all tiles, the token of the highest bound is kept, and the highest bound of the others. Then these
    tokens are scored, and at last, as is rare, all those of eight places of which another may win or come near.
    """
    EIGHTHS: tl.constexpr = TILE // 8
    bound = tl.full((EIGHTHS,), NOTHING_LEFT, tl.int32)
    left, best_ids = bound, tl.zeros((EIGHTHS,), tl.int32)
    best_rest, best_k = tl.zeros((EIGHTHS,), tl.float32), tl.zeros((EIGHTHS,), tl.uint32)
    width = tl.where(bonus == 0, node[2], 0)
    coming = tile_ahead(row, first, first < last, shape, node, width, TILE, LAW, STEPS, HAS_ALLOWED, HAS_SPECIAL)
    reach = tl.load(tile_max + first, mask=first < last, other=-float("inf"))
    next_reach = tl.load(tile_max + first + 1, mask=first + 1 < last, other=-float("inf"))
    for tile in range(first, last):
        ahead, asks = coming, reach >= law[2]
        coming = tile_ahead(row, tile + 1, (tile + 1 < last) & (next_reach >= law[2]), shape, node, width, TILE, LAW,
                            STEPS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        reach = next_reach
        next_reach = tl.load(tile_max + tile + 2, mask=tile + 2 < last, other=-float("inf"))
        if asks:
            rest, ids = residual_of_tile(row, tile, ahead, shape, law, node, width, bonus, TILE, LAW, STEPS,
                                         HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            k = words_of(tile, ids, shape[1], noise, TILE, HAS_SPECIAL)
            none = tl.full((EIGHTHS, 8), NOTHING_LEFT, tl.int32)
            found = tl.reduce(
                (tl.reshape(bound_on_score(rest, k), (EIGHTHS, 8)), tl.reshape(rest, (EIGHTHS, 8)),
                 tl.reshape(k, (EIGHTHS, 8)), tl.reshape(ids, (EIGHTHS, 8)), none), 1, better_of)  # fmt: skip
            bound, best_rest, best_k, best_ids, left = better_of(
                bound, best_rest, best_k, best_ids, left, found[0], found[1], found[2], found[3], found[4])  # fmt: skip
    raised = score(tl.log2(tl.where(best_rest > 0, best_rest, 1.0)), best_k)
    low = tl.full((EIGHTHS,), -float("inf"), tl.float32)
    scores = tl.where(best_rest > 0, raised, low)
    best, best_id, second, reach = tl.reduce((scores, best_ids, low, left), 0, winner_of)
    eighth = tl.arange(0, EIGHTHS)
    while can_be_near(reach, best):
        place = tl.min(tl.where(left == reach, eighth, EIGHTHS), 0)
        taken = tl.max(tl.where(eighth == place, best_ids, 0), 0)
        for start in range(first, last, TILES_AT_ONCE):
            mine, mine_id, next_best = scored(row, start, last, place, taken, shape, noise, law, node, bonus, TILE, LAW,
                                              STEPS, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            best, best_id, second, reach = winner_of(best, best_id, second, reach, mine, mine_id, next_best, reach)
        left = tl.where(eighth == place, NOTHING_LEFT, left)
        reach = tl.max(left, 0)
    return best, best_id, second


@triton.jit
def scored(row, first, last, place, taken, shape, noise, law, node, bonus, TILE: tl.constexpr, LAW: tl.constexpr,
           STEPS: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(best score, its id, runner-up's score) of the tokens but `taken` in one eighth, the `place`-th, of tiles `first`
    on, before `last`."""
    at = tl.arange(0, TILES_AT_ONCE * 8)
    tile = first + at // 8
    z, ids = load_places(row, tl.where(tile < last, tile, shape[0]) * TILE + place * 8 + at % 8, shape[0], shape[1],
                         shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    rest = residual(z, ids, law, node, bonus, LAW, STEPS)
    low = tl.full(ids.shape, -float("inf"), tl.float32)
    raised = score(tl.log2(tl.where(rest > 0, rest, 1.0)), field_at(ids, noise))
    none = tl.full(ids.shape, NOTHING_LEFT, tl.int32)
    best, best_id, second, unused = tl.reduce(
        (tl.where((rest > 0) & (ids != taken), raised, low), ids, low, none), 0, winner_of)  # fmt: skip
    return best, best_id, second


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
    width = tl.zeros((), tl.int32) + node[2]
    coming = tile_ahead(row, first, first < last, shape, node, width, TILE, LAW, STEPS, HAS_ALLOWED, HAS_SPECIAL)
    reach = tl.load(tile_max + first, mask=first < last, other=-float("inf"))
    next_reach = tl.load(tile_max + first + 1, mask=first + 1 < last, other=-float("inf"))
    for tile in range(first, last):
        ahead, asks = coming, reach >= law[2]
        asks_next = (tile + 1 < last) & (next_reach >= law[2])
        coming = tile_ahead(row, tile + 1, asks_next, shape, node, width, TILE, LAW, STEPS, HAS_ALLOWED, HAS_SPECIAL)
        reach = next_reach
        next_reach = tl.load(tile_max + tile + 2, mask=tile + 2 < last, other=-float("inf"))
        if asks:
            rest, ids = residual_of_tile(row, tile, ahead, shape, law, node, width, 0, TILE, LAW, STEPS, HAS_ALLOWED,
                                         HAS_SPECIAL)  # fmt: skip
            rest = tl.reshape(rest, (TILE // 8, 8))
            mass += (tl.sum(rest, 1).to(tl.float64) * 72057594037927936.0).to(tl.int64)
    return tl.sum(mass, 0)
