"""Edges about where a sample of a row says that top-p ends: so many tokens lie between two of them, by its ranks.

A sample's errors would not do: in rows of few likely tokens, which it misses, it has no idea of its own error. It is
counted by buckets of logits before anything else is known of its row: what a bucket's tokens weigh is then known, too.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.edges import ASKED, EDGES, LEAST, MOST, SCALE, WIDTH
from draftproof.kernels.device.rows import level, load_places
from draftproof.kernels.device.samples import BUCKETS, CHUNK, DEPTH, buckets_of, weights_up_to

MOST_CHUNKS = tl.constexpr(64)
NEAR = tl.constexpr(900)  # tokens between the likely end and the edges next to it, as a sample has it,
FAR = tl.constexpr(3600)  # and the outermost ones
HUGE = tl.constexpr(3.4028234663852886e38)


@triton.jit
def load_sample(row, shape, TILE: tl.constexpr, TILES: tl.constexpr, HAS_ALLOWED: tl.constexpr):
    """([N] float32 logits of a sample of a row, which share of it that is); special tokens' as they were."""
    ALL: tl.constexpr = TILES * TILE // CHUNK
    CHUNKS: tl.constexpr = ALL if ALL < MOST_CHUNKS else MOST_CHUNKS
    num_chunks = tl.cdiv(shape[1] * TILE, CHUNK)
    at = tl.arange(0, CHUNKS * CHUNK)
    chunk = at // CHUNK
    chunk = tl.where(num_chunks > CHUNKS, chunk * num_chunks // CHUNKS, chunk)
    place = tl.where(chunk < num_chunks, chunk * CHUNK + at % CHUNK, shape[1] * TILE)
    z, ids = load_places(row, place, shape[1], shape[1], shape[2], TILE, HAS_ALLOWED, False)
    return z, tl.minimum(num_chunks, CHUNKS).to(tl.float32) / num_chunks.to(tl.float32)


@triton.jit
def tally_of(z, scale):
    """([BUCKETS] what a sample's tokens of up to each bucket weigh, how many these are, the second bucket's low end,
    buckets' width, the level that these weights are relative to)."""
    finite = tl.abs(z) <= HUGE
    high = tl.max(tl.where(finite, z, -HUGE), 0)
    low = tl.maximum(tl.min(tl.where(finite, z, HUGE), 0), high - DEPTH / scale)
    low = tl.minimum(low, high)
    width = tl.minimum(high - low, 1e38) / (BUCKETS - 1)
    found = tl.histogram(buckets_of(z, finite & (z >= low), low, width), BUCKETS)
    top = level(high, scale)
    counts = tl.cumsum(found, 0).to(tl.float32)
    return weights_up_to(found, low, width, top, scale), counts, low, width, top


@triton.jit
def nearest(number, before, other_before, after, other_after, number1, before1, other_before1, after1, other_after1):
    """Of two parts of ascending values, as `reached` has them: of both together."""
    return (number + number1, tl.maximum(before, before1), tl.maximum(other_before, other_before1),
            tl.minimum(after, after1), tl.minimum(other_after, other_after1))  # fmt: skip


@triton.jit
def reached(values, others, goals):
    """[N]: how many of [N, BUCKETS] ascending values are below the goals [N, 1]; which part of the way from the last of
    these to the next value a goal is; and which of the others, ascending too, would stand there."""
    below = values < goals
    number, before, other_before, after, other_after = tl.reduce(
        (below.to(tl.int32), tl.where(below, values, 0.0), tl.where(below, others, 0.0), tl.where(below, HUGE, values),
         tl.where(below, HUGE, others)), 1, nearest)  # fmt: skip
    part = (tl.max(goals, 1) - before) / tl.maximum(after - before, 1e-37)
    part = tl.where(after < HUGE, tl.minimum(part, 1.0), 0.0)
    return number, part, other_before + tl.where(after < HUGE, part * (other_after - other_before), 0.0)


@triton.jit
def ranked_edges(tally, spare, top, share, least, most):
    """[EDGES] ascending logits: a sample has NEAR and FAR of its row's tokens between them and where it has `spare` of
    mass below, to either side; the bracket's ends where those are fewer.

    tally: of `tally_of`. spare: relative to `top`. share: which part of the row the sample is.
    """
    up_to, counted, low, width, own_top = tally
    wanted = spare.to(tl.float32) * share * tl.exp2(tl.minimum(top - own_top, 100.0))
    unused, unused1, rank = reached(up_to[None, :], counted[None, :], tl.full((1, 1), 0.0, tl.float32) + wanted)
    at = tl.arange(0, EDGES)
    distance = tl.where((at == 0) | (at == EDGES - 1), FAR, NEAR) * share
    goal = tl.max(rank, 0) + tl.where(at < EDGES // 2, -distance, distance)
    number, part, unused2 = reached(counted[None, :], counted[None, :], goal[:, None])
    edge = low + ((number - 1).to(tl.float32) + part) * width
    edge = tl.where(number >= BUCKETS, most, tl.where(number == 0, least, edge))
    return tl.maximum(tl.minimum(edge, most), least)


@triton.jit
def store_edges(edges, ranked, least, most, scale, top):
    """Writes a row's edges and what stands behind them."""
    at = tl.arange(0, WIDTH)
    behind = tl.where(at == LEAST, least, tl.where(at == MOST, most, tl.where(at == SCALE, scale, top)))
    tl.store(edges + at, tl.where(at == ASKED, 1.0, behind), mask=(at >= LEAST) & (at <= ASKED))
    tl.store(edges + tl.arange(0, EDGES), ranked)
