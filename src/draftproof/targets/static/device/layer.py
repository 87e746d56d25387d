"""What lies between a layer's matrix products, each in one pass over its input."""

from __future__ import annotations

import triton
import triton.language as tl

from draftproof.targets.static.device.chain import follow


@triton.jit(do_not_specialize=["num_tokens", "count_ptr"])
def add_norm_kernel(
    residual_ptr, added_ptr, weight_ptr, out_ptr, count_ptr, eps, num_tokens,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, COUNTED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """residual += added; out = residual / sqrt(mean(residual²) + eps), rounded, · weight. One row a program.

    PARTS: 0, nothing is added; 1, [tokens, SIZE]; more, [PARTS, tokens, SIZE] in float32, summed and rounded before.
    COUNTED: only the first rows, as many as `count_ptr` holds.
    """
    if CHAINED:
        follow()
    row = tl.program_id(0)
    if COUNTED:
        if row >= tl.load(count_ptr):
            return
    places = tl.arange(0, BLOCK)
    known = places < SIZE
    value = tl.load(residual_ptr + row * SIZE + places, mask=known, other=0.0)
    # Asked for now, so that nothing is waited for behind the sum.
    weight = tl.load(weight_ptr + places, mask=known, other=0.0)
    if PARTS > 0:
        added = tl.load(added_ptr + row * SIZE + places, mask=known, other=0.0)
        for part in tl.static_range(1, PARTS):
            added += tl.load(added_ptr + (part * num_tokens + row) * SIZE + places, mask=known, other=0.0)
        value = value + added.to(value.dtype)
        tl.store(residual_ptr + row * SIZE + places, value, mask=known)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    normed = (wide * scale).to(value.dtype)
    tl.store(out_ptr + row * SIZE + places, normed * weight, mask=known)


@triton.jit(do_not_specialize=["count_ptr"])
def place_kernel(
    joined_ptr, cos_ptr, sin_ptr, query_norm_ptr, key_norm_ptr, columns_ptr, query_ptr, keys_ptr, values_ptr,
    count_ptr, query_eps, key_eps, row_size, key_head_stride, key_stride, value_head_stride, value_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, TOGETHER: tl.constexpr,
    NORMS: tl.constexpr, COUNTED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Of one token and some heads of [queries, keys, values]: norm and rotation, then to `query` or into the cache.

    HALF: a power of two, at least half of DIM. TOGETHER: heads of a program, a power of two that divides both numbers
    of heads. COUNTED: only of the first tokens, as many as `count_ptr` holds.
    """
    if CHAINED:
        follow()
    token = tl.program_id(0).to(tl.int64)
    if COUNTED:
        if token >= tl.load(count_ptr):
            return
    first = tl.program_id(1) * TOGETHER
    heads = first + tl.arange(0, TOGETHER)[:, None]
    places = tl.arange(0, HALF)[None, :]
    known = places < DIM // 2
    source = joined_ptr + token * row_size + heads * DIM + places
    low = tl.load(source, mask=known, other=0.0)
    high = tl.load(source + DIM // 2, mask=known, other=0.0)
    dtype = low.dtype
    column = tl.load(columns_ptr + token).to(tl.int64)
    if first < HEADS + KV_HEADS:
        angles = token * DIM + places
        cos_low = tl.load(cos_ptr + angles, mask=known, other=0.0)
        cos_high = tl.load(cos_ptr + angles + DIM // 2, mask=known, other=0.0)
        sin_low = tl.load(sin_ptr + angles, mask=known, other=0.0)
        sin_high = tl.load(sin_ptr + angles + DIM // 2, mask=known, other=0.0)
        if NORMS:
            is_query = first < HEADS
            eps = tl.where(is_query, query_eps, key_eps)
            for_query = places < tl.where(is_query, DIM // 2, 0)
            for_key = places < tl.where(is_query, 0, DIM // 2)
            weight_low = tl.load(query_norm_ptr + places, mask=for_query, other=0.0)
            weight_low += tl.load(key_norm_ptr + places, mask=for_key, other=0.0)
            weight_high = tl.load(query_norm_ptr + DIM // 2 + places, mask=for_query, other=0.0)
            weight_high += tl.load(key_norm_ptr + DIM // 2 + places, mask=for_key, other=0.0)
            wide_low = low.to(tl.float32)
            wide_high = high.to(tl.float32)
            sums = tl.sum(wide_low * wide_low, 1) + tl.sum(wide_high * wide_high, 1)
            scale = tl.rsqrt(sums / DIM + eps)[:, None]
            low = (wide_low * scale).to(dtype) * weight_low
            high = (wide_high * scale).to(dtype) * weight_high
        turned_low = (low * cos_low) - (high * sin_low)
        turned_high = (high * cos_high) + (low * sin_high)
        low = turned_low
        high = turned_high
    if first < HEADS:
        target = query_ptr + (token * HEADS + heads) * DIM + places
        tl.store(target, low, mask=known)
        tl.store(target + DIM // 2, high, mask=known)
    elif column >= 0:
        if first < HEADS + KV_HEADS:
            cached = keys_ptr + (heads - HEADS) * key_head_stride + column * key_stride + places
        else:
            cached = values_ptr + (heads - HEADS - KV_HEADS) * value_head_stride + column * value_stride + places
        tl.store(cached, low, mask=known)
        tl.store(cached + DIM // 2, high, mask=known)


@triton.jit
def gate_kernel(joined_ptr, out_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """silu(gate) · up of [gate, up], each [SIZE]; rounded after silu as the model's own code does."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = places < SIZE
    gate = tl.load(joined_ptr + row * 2 * SIZE + places, mask=known, other=0.0)
    up = tl.load(joined_ptr + row * 2 * SIZE + SIZE + places, mask=known, other=0.0)
    wide = gate.to(tl.float32)
    opened = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + row * SIZE + places, opened * up, mask=known)


@triton.jit
def write_kernel(
    states_ptr, columns_ptr, cache_ptr, token_stride, head_stride, cache_head_stride, cache_stride,
    DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token and head of keys or values into its column; padding has none."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.load(columns_ptr + token).to(tl.int64)
    if column >= 0:
        places = tl.arange(0, BLOCK)
        known = places < DIM
        value = tl.load(states_ptr + token * token_stride + head * head_stride + places, mask=known)
        tl.store(cache_ptr + head * cache_head_stride + column * cache_stride + places, value, mask=known)
