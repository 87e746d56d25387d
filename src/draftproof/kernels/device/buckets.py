"""A bracket's tokens: their masses by buckets of logits, which tell where top-p ends to a bucket, and a list of them.

Masses are sums of whole weights and lie in memory, so they are the same for any number of programs. What the list has
no room for is in the masses all the same: then the bracket is cut down to its one bucket.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.boundary import value_of
from draftproof.kernels.device.passes import WHOLE, whole
from draftproof.kernels.device.rows import load_eighths, ordered

AT_ONCE = tl.constexpr(2)  # tiles of a part, which are looked at together
BUCKETS = tl.constexpr(512)


@triton.jit
def rise_of(low, high):
    """Buckets for each two of a logit, as `bucket_of` takes them."""
    return 1.0 / tl.maximum(0.5 * high - 0.5 * low, 1e-30) * BUCKETS


@triton.jit
def bucket_of(z, low, rise):
    """Which bucket of a bracket logits fall in, the first or last if they lie outside: it never falls as z rises."""
    at = tl.maximum((0.5 * z - 0.5 * low) * rise, 0.0)
    return tl.minimum(at, BUCKETS - 1.0).to(tl.int32)


@triton.jit
def first_key(bucket, low, high, rise, KEY_SHIFT: tl.constexpr):
    """The lowest key of a bracket's logits that falls in `bucket` or a later one; beyond the last if none does."""
    first, last = ordered(low) >> KEY_SHIFT, ordered(high) >> KEY_SHIFT
    last += (value_of(last, KEY_SHIFT) < high).to(tl.int32)
    while first < last:
        middle = (first & last) + ((first ^ last) >> 1)
        if bucket_of(value_of(middle, KEY_SHIFT), low, rise) >= bucket:
            last = middle
        else:
            first = middle + 1
    return first


@triton.jit
def list_part(row, part, shape, scale, top, low, high, rise, sums, masses, list_z, places, TILE: tl.constexpr,
              ROOM: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr):  # fmt: skip
    """Lists what one part of a row's tiles has in a bracket, in any order, and adds up its masses.

    sums: pointers to the mass at and above `high`, in units of 2^-43, of which sums of 8 tokens are float32; and to how
    many tokens there are, which goes on counting beyond ROOM. masses: [BUCKETS] int64, whole weights. list_z: [ROOM].
    places: [ROOM], tile * TILE + place in it.
    """
    tile = part * AT_ONCE + tl.arange(0, AT_ONCE)
    eighth = tile[:, None] * (TILE // 8) + tl.arange(0, TILE // 8)[None, :]
    z = load_eighths(row, eighth, shape[0], shape[1], shape[2], TILE, HAS_ALLOWED, HAS_SPECIAL)
    weights = tl.exp2(tl.fma(z, scale, -top))
    hits = (z >= low) & (z < high) & (z > -float("inf"))
    each = hits.to(tl.int32)
    count = tl.sum(each, 2)
    up_to = tl.cumsum(tl.reshape(count, (AT_ONCE * TILE // 8,)), 0)
    start = tl.atomic_add(sums + 1, tl.sum(tl.sum(count, 1), 0).to(tl.int64), sem="relaxed").to(tl.int32)
    before = tl.reshape(up_to, (AT_ONCE, TILE // 8)) - count + start
    index = before[:, :, None] + tl.cumsum(each, 2) - each
    stored = hits & (index < ROOM)
    tl.store(list_z + index, z, mask=stored)
    tl.store(places + index, eighth[:, :, None] * 8 + tl.arange(0, 8)[None, None, :], mask=stored)
    tl.atomic_add(masses + bucket_of(z, low, rise), whole(weights).to(tl.int64), mask=hits, sem="relaxed")
    above = (tl.sum(tl.where(z >= high, weights, 0.0), 2).to(tl.float64) * WHOLE).to(tl.int64)
    tl.atomic_add(sums, tl.sum(tl.sum(above, 1), 0), sem="relaxed")


@triton.jit
def bucket_at(masses, goal):
    """(the bucket whose mass and that of the ones above it first reach `goal`, -1 if none; its mass; theirs)."""
    bucket = tl.arange(0, BUCKETS)
    mass = tl.load(masses + bucket, cache_modifier=".cg")
    reached = tl.sum(mass, 0) - tl.cumsum(mass, 0) + mass
    found = tl.max(tl.where(reached >= goal, bucket, -1), 0)
    own = tl.sum(tl.where(bucket == found, mass, 0), 0)
    return found, own, tl.sum(tl.where(bucket > found, mass, 0), 0)
