"""Norm and rotation of heads, as the joined projection has them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turned(
    joined_ptr, begins, tokens, known, norm_ptr, eps, cos_ptr, sin_ptr,
    DIM: tl.constexpr, PADDED: tl.constexpr, NORMS: tl.constexpr,
):  # fmt: skip
    """[rows, PADDED] of heads that begin at `begins` [rows], of these tokens [rows]; zero where not `known`."""
    dims = tl.arange(0, PADDED)[None, :]
    is_low = dims < DIM // 2
    others = tl.where(is_low, dims + DIM // 2, dims - DIM // 2)
    inside = dims < DIM
    mask = known[:, None] & inside
    own = tl.load(joined_ptr + begins[:, None] + dims, mask=mask, other=0.0)
    other = tl.load(joined_ptr + begins[:, None] + others, mask=mask, other=0.0)
    dtype = own.dtype
    if NORMS:
        wide = own.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / DIM + eps)[:, None]
        own = (wide * scale).to(dtype) * tl.load(norm_ptr + dims, mask=inside, other=0.0)
        other = (other.to(tl.float32) * scale).to(dtype) * tl.load(norm_ptr + others, mask=inside, other=0.0)
    angles = tokens[:, None] * DIM + dims
    cos = tl.load(cos_ptr + angles, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + angles, mask=mask, other=0.0)
    return own * cos + tl.where(is_low, -other, other) * sin
