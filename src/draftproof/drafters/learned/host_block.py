"""A block drafter's layers on a CPU: joined and packed products, and one call each for what lies between them.

A narrow block's time goes to calls: the modules' own way makes some sixty of them a layer, this one half as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from draftproof.drafters.learned.block_model import BlockLayer, BlockModel
from draftproof.drafters.learned.cache import DraftCache
from draftproof.drafters.learned.modules import Linear, RMSNorm, Rotation
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.static.operations import Heads, Norm, operations_for, split_heads


@dataclass(frozen=True, slots=True)
class _Layer:
    """joined: queries, keys and values; keys_values, stored: for the context, which has no queries."""

    before: Norm
    joined: PackedLinear
    heads: Heads
    keys_values: PackedLinear
    stored: Heads
    out: PackedLinear
    between: Norm
    gate_up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, layer: BlockLayer) -> _Layer:
        attention, mlp, config = layer.self_attn, layer.mlp, layer.self_attn.config
        norms = (_norm(attention.q_norm), _norm(attention.k_norm)) if config.qk_norm else (None, None)
        return cls(
            before=_norm(layer.input_layernorm),
            joined=_packed([attention.q_proj, attention.k_proj, attention.v_proj]),
            heads=Heads(config.num_heads, config.num_kv_heads, config.head_dim, *norms),
            keys_values=_packed([attention.k_proj, attention.v_proj]),
            stored=Heads(0, config.num_kv_heads, config.head_dim, *norms),
            out=_packed([attention.o_proj]),
            between=_norm(layer.post_attention_layernorm),
            gate_up=_packed([mlp.gate_proj, mlp.up_proj]),
            down=_packed([mlp.down_proj]),
        )


class HostBlock:
    """The layers of a model for which `lean_block.is_lean` holds. It copies their weights."""

    def __init__(self, model: BlockModel) -> None:
        layers: list[Any] = list(model.layers)
        self._layers, self._norm = [_Layer.of(layer) for layer in layers], _norm(model.norm)
        self._operations = operations_for(torch.device("cpu"))

    def append(self, features: torch.Tensor, rotation: Rotation, cache: DraftCache) -> None:
        """Keys and values of the context's features [rows, n, hidden] go where `cache` was prepared for them."""
        shape, flat = features.shape[:2], features.flatten(0, 1)
        cosines, sines = (part.flatten(0, 1) for part in rotation)
        for index, layer in enumerate(self._layers):
            _, keys, values = split_heads(layer.keys_values(flat), layer.stored, cosines, sines)
            cache.update(_by_head(keys, shape), _by_head(values, shape), index)

    def hidden(
        self, block: torch.Tensor, rotation: Rotation, cache: DraftCache, masks: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """block [rows, n, hidden] to hidden states after the final norm; masks: one per layer, [rows, 1, n, keys].

        `cache` was prepared for the block.
        """
        shape, operations = block.shape[:2], self._operations
        residual, added = block.flatten(0, 1).clone(), None
        cosines, sines = (part.flatten(0, 1) for part in rotation)
        repeated: dict[int, torch.Tensor] = {}
        for index, (layer, mask) in enumerate(zip(self._layers, masks, strict=True)):
            heads = layer.heads
            groups = heads.heads // heads.kv_heads
            if id(mask) not in repeated:
                repeated[id(mask)] = mask.repeat(1, 1, groups, 1)
            normed = operations.add_norm(residual, added, layer.before)
            query, keys, values = split_heads(layer.joined(normed), heads, cosines, sines)
            # The query heads that share a key head are stacked along the queries: keys are read where they lie.
            stacked = query.reshape(*shape, heads.kv_heads, groups, heads.dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
            attended = scaled_dot_product_attention(
                stacked,
                *cache.update(_by_head(keys, shape), _by_head(values, shape), index),
                attn_mask=repeated[id(mask)],
                scale=heads.dim**-0.5,
            )
            attended = attended.view(shape[0], heads.kv_heads, groups, shape[1], heads.dim).permute(0, 3, 1, 2, 4)
            normed = operations.add_norm(residual, layer.out(attended.reshape(len(residual), -1)), layer.between)
            added = layer.down(operations.gate(layer.gate_up(normed)))
        return operations.add_norm(residual, added, self._norm).view(block.shape)


def _by_head(states: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """[rows · n, heads, dim] to [rows, heads, n, dim]; shape: (rows, n)."""
    return states.view(*shape, *states.shape[1:]).transpose(1, 2)


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.weight.detach(), norm.eps)


def _packed(linears: Sequence[Linear]) -> PackedLinear:
    """Several linear layers as one product."""
    biases = [layer.bias.detach() for layer in linears if layer.bias is not None]
    bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
    return PackedLinear(torch.cat([layer.weight.detach() for layer in linears]), bias)
