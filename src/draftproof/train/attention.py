"""Attention for batches of rows under an additive mask, without a copy of keys and values per query head.

transformers' own function repeats keys and values for every query head that shares them; with a thousand sequences in
the cache that is most of a step's time. Here the query heads of a group are stacked along the query axis instead.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME: Final = "draftproof-rows"


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [rows, heads, n, dim], key and value [rows, kv_heads, keys, dim], additive mask [rows, 1, n, keys].

    Returns [rows, n, heads, value dim] and None. Other calls (no mask, a boolean one) go to transformers' function.
    """
    if attention_mask is None or not attention_mask.is_floating_point() or kwargs.get("s_aux") is not None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    rows, heads, width, dim = query.shape
    groups = heads // key.shape[1]
    stacked = query.reshape(rows, key.shape[1], groups * width, dim)
    mask = attention_mask.repeat(1, 1, groups, 1) if groups > 1 else attention_mask
    out = scaled_dot_product_attention(stacked, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.reshape(rows, heads, width, value.shape[-1]).transpose(1, 2), None


def register() -> str:
    """Make `attend` known to transformers; returns the name to give as attn_implementation."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
