"""The small modules that drafters are built of, with zeroed weights: a checkpoint or a recipe fills them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention

Rotation: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [rows, positions, rotary dim]."""
Attend: TypeAlias = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
"""A layer's new keys and values [rows, kv_heads, n, dim] to those that its queries see, and the additive mask
[rows, 1, n, keys] (None: all are seen)."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What a decoder layer of a drafter looks like.

    qk_norm: queries and keys are normalised per head. gated: q_proj has a gate beside each head (Qwen3.5).
    norm_offset: norms multiply by 1 + weight. interleaved: rotary pairs are neighbours, not halves (LFM2).
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = True
    gated: bool = False
    norm_offset: bool = False
    interleaved: bool = False


class Linear(nn.Module):
    """x · weightᵀ (+ bias); weight [out, in]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return linear(features, self.weight, self.bias)


class Table(nn.Module):
    """Rows by id; weight [entries, size]."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(entries, size))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(ids, self.weight)


class RMSNorm(nn.Module):
    """x / rms(x) · weight, the root mean square in float32; with `offset`, · (1 + weight)."""

    def __init__(self, size: int, eps: float, offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if offset else torch.ones(size))
        self.eps, self.offset = eps, offset

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.offset:
            out = rms_norm(features.float(), self.weight.shape, eps=self.eps) * (1.0 + self.weight.float())
            return out.to(features.dtype)
        normed = rms_norm(features.float(), self.weight.shape, eps=self.eps)
        return self.weight * normed.to(features.dtype)


class MLP(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(hidden, inner, bias)
        self.up_proj = Linear(hidden, inner, bias)
        self.down_proj = Linear(inner, hidden, bias)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(features)) * self.up_proj(features))
        return out


class Attention(nn.Module):
    """Attention whose keys and values the caller keeps: `keys_values` makes them, `forward` attends to what
    `attend` hands back. input_size: of what is projected, the hidden size if None."""

    def __init__(self, config: LayerConfig, input_size: int | None = None) -> None:
        super().__init__()
        self.config = config
        size, bias = input_size or config.hidden_size, config.attention_bias
        queries = config.num_heads * config.head_dim
        self.q_proj = Linear(size, queries * (2 if config.gated else 1), bias=bias)
        self.k_proj = Linear(size, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = Linear(size, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = Linear(queries, config.hidden_size, bias=bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.eps, config.norm_offset)
            self.k_norm = RMSNorm(config.head_dim, config.eps, config.norm_offset)

    def keys_values(self, source: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, n, size] to keys and values [rows, kv_heads, n, head_dim], keys normalised and rotated."""
        shape = (*source.shape[:-1], self.config.num_kv_heads, self.config.head_dim)
        keys = self.k_proj(source).view(shape)
        if self.config.qk_norm:
            keys = self.k_norm(keys)
        values = self.v_proj(source).view(shape).transpose(1, 2)
        return rotate(keys.transpose(1, 2), rotation, self.config.interleaved), values

    def forward(self, source: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        rows, width = source.shape[:2]
        config = self.config
        queries = self.q_proj(source).view(rows, width, config.num_heads, -1)
        gate = None
        if config.gated:
            queries, gate = queries.chunk(2, dim=-1)
        if config.qk_norm:
            queries = self.q_norm(queries)
        queries = rotate(queries.transpose(1, 2), rotation, config.interleaved)
        keys, values, mask = attend(*self.keys_values(source, rotation))
        # The query heads that share a key head are stacked along the queries: keys are read where they lie.
        groups = config.num_heads // config.num_kv_heads
        queries = queries.reshape(rows, config.num_kv_heads, groups * width, config.head_dim)
        if mask is not None and groups > 1:
            mask = mask.repeat(1, 1, groups, 1)
        out = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=config.head_dim**-0.5)
        out = out.reshape(rows, config.num_heads, width, config.head_dim).transpose(1, 2)
        if gate is not None:
            out = out * torch.sigmoid(gate)
        projected: torch.Tensor = self.o_proj(out.reshape(rows, width, -1))
        return projected


def rotate(heads: torch.Tensor, rotation: Rotation, interleaved: bool = False) -> torch.Tensor:
    """Rotary embedding of heads [rows, heads, n, dim]; where cosines are fewer than dim, of the first ones only."""
    cosines, sines = (part.unsqueeze(1) for part in rotation)
    size = cosines.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    if interleaved:
        half = torch.stack((-turned[..., 1::2], turned[..., 0::2]), dim=-1).flatten(-2)
        cosines, sines = (part[..., : size // 2].repeat_interleave(2, dim=-1) for part in (cosines, sines))
    else:
        half = torch.cat((-turned[..., size // 2 :], turned[..., : size // 2]), dim=-1)
    out = turned * cosines + half * sines
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
