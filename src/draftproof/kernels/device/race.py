"""The race while a row is read: bounds are kept for every quad, and few quads are ever scored.

A split's quads fall into SLOTS slots, by their place in a tile, each held by one lane. A slot keeps its two best bounds
and the best of the rest: nothing crosses lanes while tiles are read, and a tile costs no loop. After the last tile a
bound is asked of each token of the slots' best quads, then of their second ones if these could matter; each slot's best
token is scored, and what stays unscored is one bound.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import SHIFT, philox4, score, screened
from draftproof.kernels.device.rows import highest, larger, load_quads, plain_only, quads_of

SLOTS = tl.constexpr(64)


@triton.jit
def nothing_found():
    """((three best scores), (two ids), (two logits)) of nothing."""
    low, first = tl.full((), -float("inf"), tl.float32), tl.full((), 0, tl.int32)
    return (low, low, low), (first, first), (low, low)


@triton.jit
def inserted(found, mine, token_id, z):
    """`found` with one more score."""
    best, second, third = found[0]
    best_id, second_id = found[1]
    best_z, second_z = found[2]
    if mine > best:
        third, second, second_id, second_z = second, best, best_id, best_z
        best, best_id, best_z = mine, token_id, z
    elif mine > second:
        third, second, second_id, second_z = second, mine, token_id, z
    else:
        third = tl.maximum(third, mine)
    return (best, second, third), (best_id, second_id), (best_z, second_z)


@triton.jit
def ranked(z, ids, scores, found, none):
    """`found` with those of `scores` [N] that reach its third. none: an id above all."""
    reach = highest(scores)
    while (reach >= found[0][2]) & (reach > -float("inf")):
        token_id = tl.min(tl.where(scores == reach, ids, none), 0)
        z_of = highest(tl.where(ids == token_id, z, -float("inf")))
        found = inserted(found, reach, token_id, z_of)
        scores = tl.where(ids == token_id, -float("inf"), scores)
        reach = highest(scores)
    return found


@triton.jit
def empty_slots(first_at):
    """(best bound, where, second best, where, best of the rest), [SLOTS] each; where is quad // SLOTS."""
    low = tl.full((SLOTS,), -float("inf"), tl.float32)
    at = tl.zeros((SLOTS,), tl.int32) + first_at
    return low, at, low, at, low


@triton.jit
def two_best(value, second, place, other, other_second, other_place):
    """Of two (value, runner-up, place): the best value and its place, and the second; NaN where a value is."""
    runner = tl.maximum(tl.minimum(value, other), tl.maximum(second, other_second))
    return larger(value, other), runner, tl.where(other > value, other_place, place)


@triton.jit
def entered(bounds, first_at, slots, GROUP: tl.constexpr):
    """The slots after the bounds [GROUP, SLOTS] of one tile. A NaN stays in `best`."""
    best, best_at, second, second_at, rest = slots
    place = tl.arange(0, GROUP)[:, None] + tl.zeros((GROUP, SLOTS), tl.int32)
    reach, runner, at = tl.reduce((bounds, tl.full((GROUP, SLOTS), -float("inf"), tl.float32), place), 0, two_best)
    at += first_at
    beaten, beaten_at = tl.minimum(reach, best), tl.where(reach > best, best_at, at)
    best_at = tl.where(reach > best, at, best_at)
    best = larger(best, reach)
    rest = tl.maximum(tl.maximum(rest, runner), tl.minimum(beaten, second))
    second_at = tl.where(beaten > second, beaten_at, second_at)
    return best, best_at, tl.maximum(second, beaten), second_at, rest


@triton.jit
def score_of_bound(bound):
    """What no score below a bound of `screened` can exceed."""
    reach = bound + SHIFT
    return tl.where(reach > -float("inf"), reach + 1e-3 + 1e-6 * tl.abs(reach), reach)


@triton.jit
def likeliest(row, quads_ptr, at, noise, scale, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
              EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(bound, id, logit, word of each slot's quad's token of the best bound, the other three's best bound), [SLOTS]."""
    num_quads = quads_of(vocab_size, EVEN)
    quad = at * SLOTS + tl.arange(0, SLOTS)
    z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, num_quads, vocab_size, PACKED, KIND, EVEN)
    z0, z1, z2, z3 = plain_only(row, quad, num_quads, z0, z1, z2, z3, HAS_ALLOWED, HAS_SPECIAL)
    k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
    b0, b1, b2, b3 = screened(z0, scale, k0), screened(z1, scale, k1), screened(z2, scale, k2), screened(z3, scale, k3)
    first, low_rest, low_id, low_z, low_k = better_of(b0, b1, 4 * quad, 4 * quad + 1, z0, z1, k0, k1)
    last, high_rest, high_id, high_z, high_k = better_of(b2, b3, 4 * quad + 2, 4 * quad + 3, z2, z3, k2, k3)
    best, rest, token_ids, z, k = better_of(first, last, low_id, high_id, low_z, high_z, low_k, high_k)
    return best, token_ids, z, k, tl.maximum(rest, tl.maximum(low_rest, high_rest))


@triton.jit
def better_of(bound, other, token_ids, other_ids, z, other_z, k, other_k):
    """(the better bound, the other one, its id, logit and word), element by element."""
    swap = other > bound
    return (tl.maximum(bound, other), tl.minimum(bound, other), tl.where(swap, other_ids, token_ids),
            tl.where(swap, other_z, z), tl.where(swap, other_k, k))  # fmt: skip


@triton.jit
def best_two(token_ids, z, scores, none):
    """`nothing_found` with the scores [SLOTS] of different tokens."""
    found = nothing_found()
    for _ in tl.static_range(2):
        reach = highest(scores)
        token_id = tl.min(tl.where(scores == reach, token_ids, none), 0)
        found = inserted(found, reach, token_id, highest(tl.where(token_ids == token_id, z, -float("inf"))))
        scores = tl.where(token_ids == token_id, -float("inf"), scores)
    best = found[0]
    return (best[0], best[1], tl.maximum(best[2], highest(scores))), found[1], found[2]


@triton.jit
def finished(row, quads_ptr, slots, noise, scale, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
             EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """(what is found in a split, whether it holds a NaN). The third score is a bound of all that isn't found.

    MASS: top-p may drop the best, so that the second has to be certain too.
    A slot's likeliest token alone is scored, of its best quad or, where that could matter, of its two best. The others
    are left to a bound; one that a row's best doesn't exceed leaves the row open, one in a thousand.
    """
    best, best_at, second, second_at, rest = slots
    faulty = tl.max((best != best).to(tl.int32), 0) > 0
    bound, token_ids, z, k, others = likeliest(row, quads_ptr, best_at, noise, scale, vocab_size, PACKED, KIND, EVEN,
                                               HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    reach = highest(bound)
    if MASS:
        reach = highest(tl.where(bound < reach, bound, -float("inf")))
    unscored, left = highest(second), highest(rest)
    if (unscored >= reach - 0.1) & (unscored > -float("inf")):
        bound2, token_ids2, z2, k2, others2 = likeliest(row, quads_ptr, second_at, noise, scale, vocab_size, PACKED,
                                                        KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        # An empty slot's second quad is its first one again.
        there = second > -float("inf")
        bound2, others2 = tl.where(there, bound2, -float("inf")), tl.where(there, others2, -float("inf"))
        bound, beaten, token_ids, z, k = better_of(bound, bound2, token_ids, token_ids2, z, z2, k, k2)
        others = tl.maximum(tl.maximum(others, others2), beaten)
        unscored = left
    # Of two quads in one tile the worse is left to `rest`, however little the slot's second one promises.
    unscored = score_of_bound(tl.maximum(tl.maximum(unscored, left), highest(others)))
    found = best_two(token_ids, z, score(z * scale, k), 4 * quads_of(vocab_size, EVEN))
    scores = found[0]
    return ((scores[0], scores[1], tl.maximum(scores[2], unscored)), found[1], found[2]), faulty
