"""A sample of a row, counted by buckets of its logits while the row is read: a bucket tells what its tokens weigh.

Programs of one warp count a part of the sample each, in the launch of the read, for which nothing of the row is known.
So the range of the buckets comes of a few of the sample's tokens, the same ones for all parts.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import has_bit
from draftproof.kernels.device.overlap import wait_for_previous
from draftproof.kernels.device.rows import level

PARTS = tl.constexpr(8)
CHUNKS = tl.constexpr(8)  # of a part,
CHUNK = tl.constexpr(64)  # tokens side by side
RANGED = tl.constexpr(4)  # tokens of each chunk that tell the range
BUCKETS = tl.constexpr(256)  # the first one is of what doesn't count
DEPTH = tl.constexpr(24.0)  # how far the range goes below the largest of these, in powers of two of weights


@triton.jit
def chunks_of(chunk, vocab_size):
    """(the first tokens of chunks [N], which are there): all of a short row, or spread over it evenly."""
    num_chunks = tl.cdiv(vocab_size, CHUNK)
    at = tl.where(num_chunks > PARTS * CHUNKS, chunk * num_chunks // (PARTS * CHUNKS), chunk)
    return tl.multiple_of(at * CHUNK, CHUNK), at < num_chunks


@triton.jit
def share_of_sample(vocab_size):
    """Which part of a row its sample is."""
    num_chunks = tl.cdiv(vocab_size, CHUNK)
    return tl.minimum(num_chunks, PARTS * CHUNKS).to(tl.float32) / num_chunks.to(tl.float32)


@triton.jit
def count_part(row, part, scale, vocab_size, counts, ends, HAS_ALLOWED: tl.constexpr,
               OVERLAP: tl.constexpr):  # fmt: skip
    """Writes how many of one part's tokens fall in each bucket, counts [BUCKETS], and ends: (the second bucket's low
    end, the buckets' width). The last bucket has what is above, the first what is below or is not there."""
    first, there = chunks_of(part * CHUNKS + tl.arange(0, CHUNKS), vocab_size)
    ids = first[:, None] + tl.arange(0, CHUNK)[None, :]
    inside = there[:, None] & (ids < vocab_size)
    z = tl.load(row[0] + ids, mask=inside, other=-float("inf")).to(tl.float32)
    if HAS_ALLOWED:
        z = tl.where(has_bit(row[1], ids, inside), z, -float("inf"))
    first, there = chunks_of(tl.arange(0, PARTS * CHUNKS), vocab_size)
    place = first[:, None] + tl.arange(0, RANGED)[None, :]
    some = tl.load(row[0] + place, mask=there[:, None] & (place < vocab_size), other=-float("inf")).to(tl.float32)
    finite = tl.abs(some) <= 3.4028234663852886e38
    high = tl.max(tl.max(tl.where(finite, some, -3.4028234663852886e38), 1), 0)
    low = tl.min(tl.min(tl.where(finite, some, 3.4028234663852886e38), 1), 0)
    high = tl.where(low <= high, high, 0.0)
    low = tl.maximum(tl.minimum(low, high), high - DEPTH / scale)
    width = tl.minimum(high - low, 1e38) * (1.5 / (BUCKETS - 1))
    at = buckets_of(z, z >= low, low, width)
    found = tl.histogram(tl.reshape(at, (CHUNKS * CHUNK,)), BUCKETS)
    wait_for_previous(OVERLAP)
    tl.store(counts + tl.arange(0, BUCKETS), found)
    if part == 0:
        tl.store(ends, low)
        tl.store(ends + 1, width)


@triton.jit
def summary_of(counts, ends, scale, there):
    """([BUCKETS] what a sample's tokens of up to each bucket weigh, the second bucket's low end, buckets' width, the
    level that these weights are relative to), of what `count_part` wrote for all parts, where it
    is `there`."""
    bucket = tl.arange(0, BUCKETS)
    found = tl.zeros((BUCKETS,), tl.int32)
    for part in tl.static_range(PARTS):
        found += tl.load(counts + part * BUCKETS + bucket, mask=bucket < tl.where(there, BUCKETS, 0), other=0)
    low, width = tl.load(ends, mask=there, other=0.0), tl.load(ends + 1, mask=there, other=0.0)
    top = level(low + width * (BUCKETS - 1), scale)
    return weights_up_to(found, low, width, top, scale), low, width, top


@triton.jit
def buckets_of(z, counted, low, width):
    """Which bucket logits z (any shape) fall in, the last one if beyond it; the first where they don't count."""
    rise = tl.where(width > 1e-37, 1.0 / tl.maximum(width, 1e-37), 0.0)
    at = tl.minimum((tl.where(counted, z, low) - low) * rise, BUCKETS - 2.0).to(tl.int32) + 1
    return tl.where(counted, at, 0)


@triton.jit
def weights_up_to(found, low, width, top, scale):
    """[BUCKETS] float32: what the tokens of up to each bucket weigh, relative to `top`. found: how many each has."""
    bucket = tl.arange(0, BUCKETS)
    middle = low + (bucket.to(tl.float32) - 0.5) * width
    weights = found.to(tl.float32) * tl.exp2(tl.fma(middle, scale, -top))
    return tl.cumsum(tl.where((bucket > 0) & (found > 0), weights, 0.0), 0)
