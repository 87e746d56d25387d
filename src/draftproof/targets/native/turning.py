"""A layer's queries and keys turned by their positions, and keys and values written to the cache, in one call."""

from __future__ import annotations

import torch

from draftproof.targets.native.compiled import turning
from draftproof.targets.native.text import LANES
from draftproof.targets.static.operations import Heads, Turning

LEAST_WORK = 1 << 15
"""Of fewer numbers other threads wouldn't begin before one is done."""


def fits(joined: torch.Tensor, heads: Heads, angles: Turning) -> bool:
    """bfloat16, heads of a multiple of 32, no norms of queries and keys."""
    return (
        heads.query_norm is None
        and heads.key_norm is None
        and heads.dim % (2 * LANES) == 0
        and all(part.dtype == torch.bfloat16 and part.is_contiguous() for part in (joined, *angles))
    )


def turn(
    joined: torch.Tensor,
    heads: Heads,
    angles: Turning,
    keys: torch.Tensor,
    values: torch.Tensor,
    columns: torch.Tensor,
) -> torch.Tensor:
    """Queries [tokens, heads, dim]; PyTorch's bits. `fits` holds.

    joined [tokens, (heads + 2 · kv_heads) · dim]. keys, values [kv_heads, columns, dim], bfloat16 and contiguous but
    for their heads' distance: the first tokens' are written to `columns` [written] int64.
    """
    query = joined.new_empty(len(joined), heads.heads, heads.dim)
    turning()(
        joined.data_ptr(),
        angles.cos.data_ptr(),
        angles.sin.data_ptr(),
        query.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        columns.data_ptr(),
        len(joined),
        len(columns),
        heads.heads,
        heads.kv_heads,
        heads.dim,
        keys.element_size() * keys.stride(0),
        values.element_size() * values.stride(0),
        torch.get_num_threads() if joined.numel() >= LEAST_WORK else 1,
    )
    return query
