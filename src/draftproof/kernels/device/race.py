"""The race while a row is read: bounds are kept for every quad, and few quads are ever scored.

A split's quads fall into SLOTS slots, by their place in a tile, each held by one lane. A slot keeps its two best bounds
and the best of the rest: nothing crosses lanes while tiles are read, and a tile costs no loop. After the last tile the
slots' best quads are scored, then their second ones if these could matter, and what stays unscored is one bound.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.noise import SHIFT, philox4, score
from draftproof.kernels.device.rows import highest, larger, load_quads, plain_only

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
def scored(row, quads_ptr, at, noise, scale, found, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
           EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """`found` with the tokens of one quad for each slot: the two best of them by id, the third as a score."""
    num_quads = (vocab_size + 3) // 4
    quad = at * SLOTS + tl.arange(0, SLOTS)
    z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, num_quads, vocab_size, PACKED, KIND, EVEN)
    z0, z1, z2, z3 = plain_only(row, quad, num_quads, z0, z1, z2, z3, HAS_ALLOWED, HAS_SPECIAL)
    k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
    s0, s1, s2, s3 = score(z0 * scale, k0), score(z1 * scale, k1), score(z2 * scale, k2), score(z3 * scale, k3)
    first, none = 4 * quad, 4 * num_quads
    for _ in tl.static_range(2):
        reach = highest(tl.maximum(tl.maximum(s0, s1), tl.maximum(s2, s3)))
        low_ids = tl.minimum(tl.where(s0 == reach, first, none), tl.where(s1 == reach, first + 1, none))
        high_ids = tl.minimum(tl.where(s2 == reach, first + 2, none), tl.where(s3 == reach, first + 3, none))
        token_id = tl.min(tl.minimum(low_ids, high_ids), 0)
        z = tl.load(row[0] + token_id, mask=token_id < vocab_size, other=-float("inf")).to(tl.float32)
        found = inserted(found, reach, token_id, z)
        s0 = tl.where(first == token_id, -float("inf"), s0)
        s1 = tl.where(first + 1 == token_id, -float("inf"), s1)
        s2 = tl.where(first + 2 == token_id, -float("inf"), s2)
        s3 = tl.where(first + 3 == token_id, -float("inf"), s3)
    scores = found[0]
    third = tl.maximum(scores[2], highest(tl.maximum(tl.maximum(s0, s1), tl.maximum(s2, s3))))
    return (scores[0], scores[1], third), found[1], found[2]


@triton.jit
def score_of_bound(bound):
    """What no score below a bound of `screened` can exceed."""
    reach = bound + SHIFT
    return tl.where(reach > -float("inf"), reach + 1e-3 + 1e-6 * tl.abs(reach), reach)


@triton.jit
def finished(row, quads_ptr, slots, noise, scale, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
             EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """(what is found in a split, whether it holds a NaN). The third score is a bound of all that isn't found.

    MASS: top-p may drop the best, so that the second has to be certain too.
    """
    best, best_at, second, second_at, rest = slots
    faulty = tl.max((best != best).to(tl.int32), 0) > 0
    found = scored(row, quads_ptr, best_at, noise, scale, nothing_found(), vocab_size, PACKED, KIND, EVEN, HAS_ALLOWED,
                   HAS_SPECIAL)  # fmt: skip
    unscored, left = score_of_bound(highest(second)), score_of_bound(highest(rest))
    needed = found[0][0]
    if MASS:
        needed = found[0][1]
    if (unscored >= needed) & (unscored > -float("inf")):
        found = scored(row, quads_ptr, second_at, noise, scale, found, vocab_size, PACKED, KIND, EVEN, HAS_ALLOWED,
                       HAS_SPECIAL)  # fmt: skip
        unscored = left
    # Of two quads in one tile the worse is left to `rest`, however little the slot's second one promises.
    unscored = tl.maximum(unscored, left)
    scores = found[0]
    return ((scores[0], scores[1], tl.maximum(scores[2], unscored)), found[1], found[2]), faulty
