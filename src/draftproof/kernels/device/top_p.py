"""Where top-p alone ends in a row, of whose tokens it may keep tens of thousands.

A sample of the row tells about where the mass that may be dropped ends. One pass weighs what lies above edges around
there, a second one lists the few tokens between the two edges that it ends between (edges.py), and these are searched.
What is weighed is the truth. Where the sample misled, or many tokens are equal, the tokens between two edges may be
more than a list holds: they are weighed by buckets of logits then (buckets.py), and one bucket's are listed.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import value_of
from draftproof.kernels.device.buckets import AT_ONCE, BUCKETS, bucket_at, bucket_of, first_key, list_part, rise_of
from draftproof.kernels.device.edges import ASKED, LEAST, LEVEL, MOST, SCALE, WIDTH
from draftproof.kernels.device.passes import whole
from draftproof.kernels.device.rows import load_places, ordered

CHUNK = tl.constexpr(64)  # tokens side by side in a sample
MOST_CHUNKS = tl.constexpr(64)
TRIED = tl.constexpr(4)  # values looked at together while a sample is searched,
SEARCHES = tl.constexpr(4)  # and so often: a range is cut down to one part in 5^4
HALVINGS = tl.constexpr(7)
NEAR = tl.constexpr(900)  # tokens between the likely end and the edges next to it, as a sample has it,
FAR = tl.constexpr(3600)  # and the outermost ones
FEW = tl.constexpr(16)  # equal tokens that show that all may be
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
def load_sample(row, shape, TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr,
                HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """([N] float32 logits of a sample of a row, which share of it that is)."""
    ALL: tl.constexpr = TILES * TILE // CHUNK
    CHUNKS: tl.constexpr = ALL if ALL < MOST_CHUNKS else MOST_CHUNKS
    num_chunks = tl.cdiv(shape[0] * TILE, CHUNK)
    at = tl.arange(0, CHUNKS * CHUNK)
    chunk = at // CHUNK
    chunk = tl.where(num_chunks > CHUNKS, chunk * num_chunks // CHUNKS, chunk)
    place = tl.where(chunk < num_chunks, chunk * CHUNK + at % CHUNK, shape[0] * TILE)
    z, ids = load_places(row, place, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    return z, tl.minimum(num_chunks, CHUNKS).to(tl.float32) / num_chunks.to(tl.float32)


@triton.jit
def sampled_bracket(z, share, scale, top, spare, low, high):
    """(likely, down, up): where a sample has `spare` of mass below, and [2] how far from there NEAR and FAR of its
    tokens lie to either side, or the bracket's end if those are fewer."""
    weights = tl.exp2(tl.fma(z, scale, -top))
    wanted = spare.to(tl.float32) * share
    part = (tl.arange(0, TRIED) + 1).to(tl.float32) * 0.2
    a, width = low, tl.minimum(high - low, 3.4028234663852886e38)
    for _ in range(SEARCHES):
        tried = a + width * part
        mass = tl.sum(tl.where(z[None, :] < tried[:, None], weights[None, :], 0.0), 1)
        width *= 0.2
        a += width * tl.sum((mass <= wanted).to(tl.int32), 0).to(tl.float32)
    b = a + width
    most = (share * tl.where(tl.arange(0, 2) == 0, NEAR, FAR).to(tl.float32)).to(tl.int32)
    down, up = tl.zeros((2,), tl.float32), tl.zeros((2,), tl.float32)
    by, height = tl.full((), 1.0, tl.float32), high - b
    for _ in range(HALVINGS + 1):
        # The whole width first, then halves of what is left. Counts of at most 2^13 to either side in one sum.
        far_down, far_up = down + by * (b - low), up + by * height
        below = (z < b)[None, :] & (z[None, :] >= (b - far_down)[:, None])
        above = (z >= b)[None, :] & (z[None, :] < (b + far_up)[:, None])
        counts = tl.sum(tl.where(below, 1, 0) + tl.where(above, 65536, 0), 1)
        down = tl.where((counts & 65535) <= most, tl.minimum(far_down, b - low), down)
        up = tl.where((counts >> 16) <= most, tl.minimum(far_up, high - b), up)
        by *= 0.5
        height = tl.minimum(high - b, 2.0 * (b - low))  # likely tokens are few
    return b, down, up


@triton.jit
def store_edges(edges, likely, down, up, least, most, scale, top):
    """A row's edges, ascending: close to where top-p is likely to end, and further apart further away; and what stands
    behind them. down, up: [2], to the nearest and to the outermost."""
    at = tl.arange(0, WIDTH)
    near = tl.arange(0, 2) == 0
    near_down, far_down = tl.sum(tl.where(near, down, 0.0), 0), tl.sum(tl.where(near, 0.0, down), 0)
    near_up, far_up = tl.sum(tl.where(near, up, 0.0), 0), tl.sum(tl.where(near, 0.0, up), 0)
    edge = likely + tl.where(at == 0, -far_down, tl.where(at == 1, -near_down, tl.where(at == 2, near_up, far_up)))
    edge = tl.where(at == LEAST, least, tl.where(at == MOST, most, edge))
    edge = tl.where(at == SCALE, scale, tl.where(at == LEVEL, top, edge))
    tl.store(edges + at, tl.where(at == ASKED, 1.0, edge))


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
        first, last = tl.full((), 0, tl.int32), id_bound
        while first < last:
            # Two counts in one sum: a third of what is left of the ids in each turn.
            third = (last - first) // 3
            id1, id2 = first + third, first + 2 * third
            counts = tl.sum(tl.where(tied, (ids <= id1).to(tl.int32) + ((ids <= id2).to(tl.int32) << 16), 0), 0)
            in1, in2 = (counts & 65535) >= num_kept, (counts >> 16) >= num_kept
            last = tl.where(in1, id1, tl.where(in2, id2, last))
            first = tl.where(in1, first, tl.where(in2, id1 + 1, id2 + 1))
        id_bound = first
    return value_of(low, KEY_SHIFT), id_bound, kept, enough
