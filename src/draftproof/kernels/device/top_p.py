"""Where top-p alone ends in a row, of whose tokens it may keep tens of thousands.

A sample of the row tells about where the mass that may be dropped ends (ranks.py). One pass weighs what lies above
edges around there, a second one lists the few tokens between the two edges that it ends between (edges.py), and these
are searched. What is weighed is the truth. Where the sample misled, or many tokens are equal, the tokens between two
edges may be more than a list holds: they are weighed by buckets of logits then (buckets.py), and one bucket's are
listed.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import value_of
from draftproof.kernels.device.buckets import AT_ONCE, BUCKETS, bucket_at, bucket_of, first_key, list_part, rise_of
from draftproof.kernels.device.passes import whole
from draftproof.kernels.device.rows import ordered

FEW = tl.constexpr(16)  # equal tokens that show that all may be
EVEN_TURNS = tl.constexpr(5)  # in which ids are taken for evenly spread
TURNS = tl.constexpr(8)  # passes over a row, at most


@triton.jit
def first_bracket(largest, scale, top, total, top_p, vocab_size):
    """(low, high): top-p's last token has low <= z < high. V tokens below low weigh less than what may be dropped."""
    spare = (1.0 - top_p) * total / vocab_size
    depth = tl.log2(spare.to(tl.float32)) - 0.01 + top
    low = depth / scale
    low = tl.maximum(low - 1e-5 * tl.abs(low) - 1e-30, -3.4028234663852886e38)
    return tl.minimum(low, largest), largest + tl.abs(largest) * 1e-6 + 1e-30


@triton.jit
def settled_bracket(row, shape, scale, top, wanted, low, high, sums, masses, list_z, places,
                    TILE: tl.constexpr, ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                    HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(what is found, a bucket's number, its bracket's low end and rise, the mass above it, what is wanted of its own,
    how many tokens there are), masses in units of 2^-43. For rows of more tokens between two edges than a list holds.

    Found: 0 nothing; 1 a bucket, whose tokens are listed; 2 one logit, `low`, that all tokens of the bucket have.
    sums: two int64. sums, masses, list_z, places: as in `list_part`.
    """
    rise = rise_of(low, high)
    found, bucket, count = tl.zeros((), tl.int32), tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    above_units, goal = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    turn = tl.zeros((), tl.int32)
    while turn < TURNS:
        tl.debug_barrier()
        tl.store(masses + tl.arange(0, BUCKETS), tl.zeros((BUCKETS,), tl.int64))
        tl.store(sums + tl.arange(0, 2), tl.zeros((2,), tl.int64))
        tl.debug_barrier()
        for part in range(0, tl.cdiv(shape[0], AT_ONCE)):
            list_part(row, part, shape, scale, top, low, high, rise, sums, masses, list_z, places, TILE, ROOM,
                      HAS_ALLOWED, HAS_SPECIAL)  # fmt: skip
        tl.debug_barrier()
        turn += 1
        above_units = tl.load(sums, cache_modifier=".cg")
        listed = tl.load(sums + 1, cache_modifier=".cg")
        goal = tl.maximum(wanted - above_units, 1)
        bucket, own, before = bucket_at(masses, goal)
        if (bucket < 0) | (above_units >= wanted):
            turn = tl.full((), TURNS, tl.int32)  # other sums in float32 said else, or not all are equal below
        else:
            found = tl.full((), 1, tl.int32)
            count = listed.to(tl.int32)
            if listed >= ROOM:
                first = first_key(bucket, low, high, rise, KEY_SHIFT)
                after = first_key(bucket + 1, low, high, rise, KEY_SHIFT)
                found = tl.where(value_of(after - 1, KEY_SHIFT) > value_of(first, KEY_SHIFT), 0, 2)
                if found == 2:
                    low = value_of(first, KEY_SHIFT)
                    one = whole(tl.exp2(tl.fma(low, scale, -top))).to(tl.int64)
                    count = (own // tl.maximum(one, 1)).to(tl.int32)
                else:
                    # Those that were listed tell whether all of the bucket's tokens may be equal.
                    z = tl.load(list_z + tl.arange(0, ROOM), cache_modifier=".cg") + 0.0
                    mine = bucket_of(z, low, rise) == bucket
                    lowest, highest = tl.min(tl.where(mine, z, high), 0), tl.max(tl.where(mine, z, low), 0)
                    high = tl.minimum(high, value_of(after, KEY_SHIFT))
                    low = tl.maximum(low, value_of(first, KEY_SHIFT))
                    if (lowest == highest) & (tl.sum(mine.to(tl.int32), 0) >= FEW):
                        low = lowest
                        high = value_of((ordered(lowest) >> KEY_SHIFT) + 1, KEY_SHIFT)
            if found > 0:
                turn = tl.full((), TURNS, tl.int32)
                above_units += before
                goal -= before
        rise = tl.where(found > 0, rise, rise_of(low, high))
    return found, bucket, low, rise, above_units, goal, count


@triton.jit
def keep_of_bucket(row, list_z, places, count, bucket, low_z, rise, shape, scale, top, goal, TILE: tl.constexpr,
                   ROOM: tl.constexpr, KEY_SHIFT: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """(bound's logit, bound's id, units that are kept of a bucket, enough): the first of its listed tokens that weigh
    `goal` units.

    enough: whether they weigh that much, which sums in float32 may have said of too few.
    """
    at = tl.arange(0, ROOM)
    z = tl.load(list_z + at, cache_modifier=".cg") + 0.0
    ids = tl.load(places + at, cache_modifier=".cg")
    alive = (at < count) & (bucket_of(z, low_z, rise) == bucket)
    if HAS_SPECIAL:
        extra = alive & (ids >= shape[1] * TILE)
        ids = tl.where(extra, tl.load(row[3] + ids - shape[1] * TILE, mask=extra, other=0), ids)
    key = ordered(z) >> KEY_SHIFT
    units = tl.where(alive, whole(tl.exp2(tl.fma(z, scale, -top))), 0.0).to(tl.int64)
    enough = tl.sum(units, 0) >= goal
    low = tl.min(tl.where(alive, key, 2147483647), 0)
    high = tl.max(tl.where(alive, key, -2147483648), 0)
    id_bound = tl.full((), 0, tl.int32) + shape[2]
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        if tl.sum(tl.where(key >= middle, units, 0), 0) >= goal:
            low = middle
        else:
            high = middle - 1
    before = tl.sum(tl.where(key > low, units, 0), 0)
    tied = alive & (key == low)
    one = tl.maximum(tl.max(tl.where(tied, units, 0), 0), 1)
    num_tied = tl.sum(tied.to(tl.int32), 0)
    num_kept = tl.minimum((goal - before + one - 1) // one, num_tied.to(tl.int64)).to(tl.int32)
    kept = before + num_kept.to(tl.int64) * one
    if num_kept < num_tied:
        id_bound = kth_id(ids, tied, num_kept, num_tied, shape[2])
    return value_of(low, KEY_SHIFT), id_bound, kept, enough


@triton.jit
def kth_id(ids, counted, k, count, vocab_size):
    """The k-th lowest of `count` counted ids [N]. k: 1 to count.

    Looked for first where evenly spread ids would have it, later in thirds of what is left.
    """
    first, last = tl.full((), 0, tl.int32), tl.zeros((), tl.int32) + vocab_size
    before, up_to = tl.full((), 0, tl.int32), tl.zeros((), tl.int32) + count
    turn = tl.full((), 0, tl.int32)
    while first < last:
        if k == before + 1:
            first = tl.min(tl.where(counted & (ids >= first), ids, last), 0)
            last = first
        elif k == up_to:
            last = tl.max(tl.where(counted & (ids <= last), ids, first), 0)
            first = last
        else:
            width, number = (last - first).to(tl.float32), (up_to - before).to(tl.float32)
            share = ((k - before).to(tl.float32) - 0.5) / number
            spread = tl.sqrt(share * (1.0 - share) / number) + 0.25 / number
            share = tl.where(turn < EVEN_TURNS, share, 0.5)
            spread = tl.where(turn < EVEN_TURNS, spread, 0.1667)
            id1 = first + (width * tl.maximum(share - spread, 0.0)).to(tl.int32)
            id2 = first + (width * tl.minimum(share + spread, 1.0)).to(tl.int32)
            id1, id2 = tl.minimum(id1, last - 1), tl.minimum(id2, last - 1)
            # Two counts in one sum.
            counts = tl.sum(tl.where(counted, (ids <= id1).to(tl.int32) + ((ids <= id2).to(tl.int32) << 16), 0), 0)
            count1, count2 = counts & 65535, counts >> 16
            in1, in2 = count1 >= k, count2 >= k
            before = tl.where(in1, before, tl.where(in2, count1, count2))
            up_to = tl.where(in1, count1, tl.where(in2, count2, up_to))
            last = tl.where(in1, id1, tl.where(in2, id2, last))
            first = tl.where(in1, first, tl.where(in2, id1 + 1, id2 + 1))
            turn += 1
    return first
