"""The attention function that targets install in a transformers model.

It computes what transformers' `sdpa` computes for an additive float mask (softmax(q·k·scale + mask)·v), with one
difference of layout: the query heads that share a key head are stacked along the query axis, so that keys and
values are read where they lie in the cache instead of being copied once per query head at every step.

Any other call (a boolean mask, or a causal block without a mask, as transformers' own `generate` makes) goes to
transformers' own function, so the model stays usable outside draftproof.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from draftproof.errors import UnsupportedModelError

NAME = "draftproof"
# Keyword arguments that change the law of attention and that this function does not compute.
UNSUPPORTED = ("softcap", "position_bias", "s_aux", "sinks")


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
    """Attention over cached keys.

    query [batch, heads, width, dim]; key, value [batch, kv_heads, keys, dim]; attention_mask additive float
    [batch, 1, groups · queries, keys], or None for one query that sees every key. Where the mask has more queries
    than `width`, the query is padded to it and the padding's result dropped. Where key, value and mask have
    batch · width rows instead of batch, each query has keys of its own (a tree under invariant execution).
    Returns [batch, width, heads, value dim] and None.
    """
    batch, num_heads, width, dim = query.shape
    ours = attention_mask.is_floating_point() if attention_mask is not None else width == 1
    if not ours:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out, None
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(
                f"attention with {name!r} is not computed by the {NAME!r} attention function; "
                "load the model with attn_implementation='eager'"
            )
    rows, kv_heads = key.shape[0], key.shape[1]
    if rows != batch:
        query = query.transpose(1, 2).reshape(rows, num_heads, 1, dim)
    num_outputs, width, batch = width, query.shape[2], rows
    groups = num_heads // kv_heads
    queries = width if attention_mask is None else max(width, attention_mask.shape[2] // groups)
    if queries > width:
        query = torch.nn.functional.pad(query, (0, 0, 0, queries - width))
    if groups > 1:
        query = query.reshape(batch, kv_heads, groups * queries, dim)
        if attention_mask is not None and attention_mask.shape[2] == width:
            attention_mask = attention_mask.repeat(1, 1, groups, 1)
    out = scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling)
    out = out.reshape(batch, num_heads, queries, value.shape[-1])[:, :, :width].transpose(1, 2)
    return out.reshape(-1, num_outputs, num_heads, value.shape[-1]), None


def register() -> str:
    """Make `attend` known to transformers; returns the name to give as attn_implementation."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
