"""Attention of short runs of queries over long caches: keys in splits, each read once for all heads that share it.

A program of `split_kernel` takes a row of the tables, a key head and a split: one of the first `NUM_FINE`, of `FINE`
keys, or one of `SPLIT` keys behind them. It keeps, for each of `BLOCK_M` = (tokens · query heads of the key head)
queries, the running maximum m, the mass l = sum exp2(s - m) and the sum acc = sum exp2(s - m) · v; `merge_kernel`
brings the splits together in their order. A key that a query doesn't see adds an exact zero, and splits begin at fixed
places, so a query's result doesn't depend on how many more keys the forward reads, nor on the other queries of its row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftproof.targets.static.device.chain import follow

CHAIN = tl.constexpr(0)
TREE = tl.constexpr(1)
PATH = tl.constexpr(2)
BLOCK = tl.constexpr(3)
NO_WINDOW = tl.constexpr(0)


@triton.jit
def _row(rows_ptr, row):
    fields = rows_ptr + row * 6
    first = tl.load(fields)
    count = tl.load(fields + 1)
    offset = tl.load(fields + 2)
    base = tl.load(fields + 3)
    total = tl.load(fields + 4)
    block = tl.load(fields + 5)
    return first, count, offset, base, total, block


@triton.jit
def _visible(
    keys, places, first, count, base, total, block, own, positions_ptr, links_ptr,
    KIND: tl.constexpr, LINKS: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N]: may the query see the key?"""
    inside = keys - base
    if KIND == TREE:
        bit = tl.maximum(inside, 0)
        known = (inside >= 0) & (keys < total)
        pointers = links_ptr + (first + places)[:, None] * LINKS + (bit // 32)[None, :]
        words = tl.load(pointers, mask=known[None, :] & (places < count)[:, None], other=0)
        seen = (inside < 0)[None, :] | ((((words >> (bit % 32)[None, :]) & 1) == 1) & known[None, :])
        if WINDOW != NO_WINDOW:
            within = tl.load(positions_ptr + block + inside, mask=known, other=0)
            key_positions = tl.where(inside >= 0, within, keys)
            seen = seen & (own[:, None] - key_positions[None, :] < WINDOW)
        return seen
    if KIND == BLOCK:
        seen = (keys[None, :] < total) & (places[:, None] < count)
        if WINDOW != NO_WINDOW:
            seen = seen & (keys[None, :] - own[:, None] < WINDOW)
    else:
        seen = keys[None, :] - (total - count) <= places[:, None]
    if WINDOW != NO_WINDOW:
        seen = seen & (own[:, None] - keys[None, :] < WINDOW)
    return seen


@triton.jit
def _begin_of(split, SPLIT: tl.constexpr, FINE: tl.constexpr, NUM_FINE: tl.constexpr):
    return tl.minimum(split, NUM_FINE) * FINE + tl.maximum(split - NUM_FINE, 0) * SPLIT


@triton.jit(do_not_specialize=["num_splits"])
def split_kernel(
    query_ptr, keys_ptr, values_ptr, rows_ptr, positions_ptr, links_ptr, out_ptr, sums_ptr, stats_ptr,
    scale, num_splits, key_head_stride, key_stride, value_head_stride, value_stride,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr, FINE: tl.constexpr, NUM_FINE: tl.constexpr, MERGES: tl.constexpr, KIND: tl.constexpr,
    LINKS: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    first, count, offset, base, total, block = _row(rows_ptr, row)
    begin = _begin_of(split, SPLIT, FINE, NUM_FINE)
    if CHAINED:
        follow()
    if count > 0 and begin < total:
        queries = tl.arange(0, BLOCK_M)
        places = queries // GROUPS
        heads = head * GROUPS + queries % GROUPS
        valid = places < count
        dims = tl.arange(0, DIM_PADDED)
        value_dims = tl.arange(0, VALUE_PADDED)
        query = tl.load(
            query_ptr + ((first + places) * HEADS + heads)[:, None] * DIM + dims[None, :],
            mask=valid[:, None] & (dims < DIM)[None, :], other=0.0,
        )  # fmt: skip
        own = tl.load(positions_ptr + first + places, mask=valid, other=0)
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        mass = tl.zeros([BLOCK_M], tl.float32)
        total_values = tl.zeros([BLOCK_M, VALUE_PADDED], tl.float32)
        end = tl.minimum(_begin_of(split + 1, SPLIT, FINE, NUM_FINE), total)
        for start in range(begin, end, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            columns = (offset + keys).to(tl.int64)
            known = keys < total
            if KIND == PATH:
                inside = keys - base
                link = tl.load(links_ptr + row * LINKS + inside, mask=known & (inside >= 0), other=0)
                columns = tl.where(inside >= 0, offset + base + link, offset + keys).to(tl.int64)
            key = tl.load(
                keys_ptr + head * key_head_stride + columns[None, :] * key_stride + dims[:, None],
                mask=known[None, :] & (dims < DIM)[:, None], other=0.0,
            )  # fmt: skip
            scores = tl.dot(query, key, input_precision=PRECISION) * scale
            seen = _visible(
                keys, places, first, count, base, total, block, own, positions_ptr, links_ptr, KIND, LINKS, WINDOW
            )
            scores = tl.where(seen & known[None, :], scores, float("-inf"))
            higher = tl.maximum(peak, tl.max(scores, 1))
            pivot = tl.where(higher == float("-inf"), 0.0, higher)
            shrink = tl.exp2(peak - pivot)
            weights = tl.exp2(scores - pivot[:, None])
            mass = mass * shrink + tl.sum(weights, 1)
            value = tl.load(
                values_ptr + head * value_head_stride + columns[:, None] * value_stride + value_dims[None, :],
                mask=known[:, None] & (value_dims < VALUE_DIM)[None, :], other=0.0,
            )  # fmt: skip
            total_values = total_values * shrink[:, None]
            total_values += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
            peak = higher
        if not MERGES:
            tl.store(
                out_ptr + ((first + places) * HEADS + heads)[:, None] * VALUE_DIM + value_dims[None, :],
                total_values / mass[:, None], mask=valid[:, None] & (value_dims < VALUE_DIM)[None, :],
            )  # fmt: skip
        else:
            part = ((first + places) * HEADS + heads).to(tl.int64) * num_splits + split
            tl.store(sums_ptr + part[:, None] * VALUE_PADDED + value_dims[None, :], total_values, mask=valid[:, None])
            tl.store(stats_ptr + 2 * part, peak, mask=valid)
            tl.store(stats_ptr + 2 * part + 1, mass, mask=valid)


@triton.jit(do_not_specialize=["num_splits"])
def merge_kernel(
    rows_ptr, out_ptr, sums_ptr, stats_ptr, num_splits,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr, SPLIT: tl.constexpr, FINE: tl.constexpr, NUM_FINE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """One query of one key head a program."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    query = tl.program_id(2)
    first, count, _, _, total, _ = _row(rows_ptr, row)
    if CHAINED:
        follow()
    place = query // GROUPS
    if place < count:
        dims = tl.arange(0, VALUE_PADDED)
        index = (first + place) * HEADS + head * GROUPS + query % GROUPS
        peak = tl.full([], float("-inf"), tl.float32)
        mass = tl.full([], 0.0, tl.float32)
        sums = tl.zeros([VALUE_PADDED], tl.float32)
        used = tl.cdiv(tl.minimum(total, NUM_FINE * FINE), FINE)
        used += tl.cdiv(tl.maximum(total - NUM_FINE * FINE, 0), SPLIT)
        for split in range(0, used):
            part = index.to(tl.int64) * num_splits + split
            its_peak = tl.load(stats_ptr + 2 * part)
            its_mass = tl.load(stats_ptr + 2 * part + 1)
            its_sums = tl.load(sums_ptr + part * VALUE_PADDED + dims)
            higher = tl.maximum(peak, its_peak)
            pivot = tl.where(higher == float("-inf"), 0.0, higher)
            shrink = tl.exp2(peak - pivot)
            weight = tl.exp2(its_peak - pivot)
            mass = mass * shrink + its_mass * weight
            sums = sums * shrink + its_sums * weight
            peak = higher
        tl.store(out_ptr + index * VALUE_DIM + dims, sums / mass, mask=dims < VALUE_DIM)
