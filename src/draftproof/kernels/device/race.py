"""The race while a row is read: bounds are kept for every quad, and few quads are ever scored.

A split's quads fall into SLOTS slots, by their place in a tile, each held by one lane. A slot keeps its best quad's
bound and the best bound of all its others: nothing crosses lanes while tiles are read, and a tile costs no loop. After
the last tile the likeliest token of each slot's best quad is scored, then all of the slots whose bounds still matter.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import plain_only
from draftproof.kernels.device.noise import SHIFT, philox4, score, screened
from draftproof.kernels.device.rows import highest, larger, load_quads, quads_of

SLOTS = tl.constexpr(64)
QUADS = tl.constexpr(32)  # of one slot that are scored together: one a lane


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
    """(best bound, where, the best of the others), [SLOTS] each; where is quad // SLOTS."""
    low = tl.full((SLOTS,), -float("inf"), tl.float32)
    return low, tl.zeros((SLOTS,), tl.int32) + first_at, low


@triton.jit
def two_best(value, second, place, other, other_second, other_place):
    """Of two (value, runner-up, place): the best value and its place, and the second; NaN where a value is."""
    runner = tl.maximum(tl.minimum(value, other), tl.maximum(second, other_second))
    return larger(value, other), runner, tl.where(other > value, other_place, place)


@triton.jit
def entered(bounds, first_at, slots, GROUP: tl.constexpr):
    """The slots after the bounds [GROUP, SLOTS] of one tile. A NaN stays in `best`."""
    best, best_at, left = slots
    place = tl.arange(0, GROUP)[:, None] + tl.zeros((GROUP, SLOTS), tl.int32)
    reach, runner, at = tl.reduce((bounds, tl.full((GROUP, SLOTS), -float("inf"), tl.float32), place), 0, two_best)
    left = tl.maximum(left, tl.maximum(runner, tl.minimum(reach, best)))
    return larger(best, reach), tl.where(reach > best, at + first_at, best_at), left


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
def joined(found, other):
    """`found` with what `best_two` found among other tokens."""
    scores, ids, z = other
    found = inserted(found, scores[0], ids[0], z[0])
    found = inserted(found, scores[1], ids[1], z[1])
    best = found[0]
    return (best[0], best[1], tl.maximum(best[2], scores[2])), found[1], found[2]


@triton.jit
def with_slot(row, quads_ptr, slot, taken, ats, noise, scale, found, vocab_size, PACKED: tl.constexpr,
              KIND: tl.constexpr, EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr,
              HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """`found` with all of one slot's tokens but `taken`, which it has. ats: (first, end) of the split's quads in it."""
    num_quads = quads_of(vocab_size, EVEN)
    for first_at in range(ats[0], ats[1], QUADS):
        at = first_at + tl.arange(0, QUADS)
        quad = tl.where(at < ats[1], at * SLOTS + slot, num_quads)
        z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, num_quads, vocab_size, PACKED, KIND, EVEN)
        z0, z1, z2, z3 = plain_only(row, quad, num_quads, z0, z1, z2, z3, HAS_ALLOWED, HAS_SPECIAL)
        k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
        z, k = of_quads(z0, z1, z2, z3), of_quads(k0, k1, k2, k3)
        token_ids = of_quads(4 * quad, 4 * quad + 1, 4 * quad + 2, 4 * quad + 3)
        scores = tl.where(token_ids == taken, -float("inf"), score(z * scale, k))
        found = joined(found, best_two(token_ids, z, scores, 4 * num_quads))
    return found


@triton.jit
def of_quads(x0, x1, x2, x3):
    """[4 * QUADS] of the quads' four [QUADS], token by token."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (4 * QUADS,))


@triton.jit
def slots_again(row, quads_ptr, ats, noise, scale, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
                EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """A split's slots, with each token that isn't allowed or is special left out. ats: as in `finished`."""
    num_quads = quads_of(vocab_size, EVEN)
    slots = empty_slots(ats[0])
    for at in range(ats[0], ats[1]):
        quad = at * SLOTS + tl.arange(0, SLOTS)
        z0, z1, z2, z3 = load_quads(quads_ptr, row[0], quad, num_quads, vocab_size, PACKED, KIND, EVEN)
        z0, z1, z2, z3 = plain_only(row, quad, num_quads, z0, z1, z2, z3, HAS_ALLOWED, HAS_SPECIAL)
        k0, k1, k2, k3 = philox4(quad.to(tl.uint32), noise[0], noise[1], noise[2], noise[3], noise[4])
        largest = larger(larger(z0, z1), larger(z2, z3))
        bounds = screened(largest, scale, tl.minimum(tl.minimum(k0, k1), tl.minimum(k2, k3)))
        slots = entered(bounds[None, :], at, slots, 1)
    return slots


@triton.jit
def finished(row, quads_ptr, slots, ats, noise, scale, vocab_size, PACKED: tl.constexpr, KIND: tl.constexpr,
             EVEN: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr, MASS: tl.constexpr):  # fmt: skip
    """(what is found in a split, whether it holds a NaN). The third score is a bound of all that isn't found.

    ats: (first, end) of the split's quads // SLOTS. MASS: top-p may drop the best, so that the second has to be certain
    too. Of each slot's best quad the likeliest token is scored; then whole slots are, while what is left of one could
    matter. Likely tokens are neighbours in real vocabularies, so that a slot often has two of them, or one quad has.
    """
    best, best_at, left = slots
    faulty = tl.max((best != best).to(tl.int32), 0) > 0
    if HAS_ALLOWED:
        if faulty:
            # A quad's largest logit may be a token's that isn't allowed.
            best, best_at, left = slots_again(row, quads_ptr, ats, noise, scale, vocab_size, PACKED, KIND, EVEN,
                                              HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            faulty = tl.max((best != best).to(tl.int32), 0) > 0
    bound, token_ids, z, k, others = likeliest(row, quads_ptr, best_at, noise, scale, vocab_size, PACKED, KIND, EVEN,
                                               HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
    found = best_two(token_ids, z, score(z * scale, k), 4 * quads_of(vocab_size, EVEN))
    left = tl.maximum(left, others)
    reach, asks = highest(left), faulty == 0
    while asks:
        needed = found[0][0]
        if MASS:
            needed = found[0][1]
        asks = (score_of_bound(reach) >= needed) & (reach > -float("inf"))
        if asks:
            slot = tl.min(tl.where(left == reach, tl.arange(0, SLOTS), SLOTS), 0)
            chosen = tl.arange(0, SLOTS) == slot
            found = with_slot(row, quads_ptr, slot, tl.max(tl.where(chosen, token_ids, 0), 0), ats, noise, scale, found,
                              vocab_size, PACKED, KIND, EVEN, HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
            left = tl.where(chosen, -float("inf"), left)
            reach = highest(left)
    scores = found[0]
    return ((scores[0], scores[1], tl.maximum(scores[2], score_of_bound(reach))), found[1], found[2]), faulty
