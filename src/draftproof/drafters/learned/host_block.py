"""A block drafter's layers on a CPU: joined products, and the fewest calls for what lies between them.

A narrow block's time goes to calls: the modules' own way makes some sixty of them a layer, this one a third as many.
Norms of queries and keys and the rotation are two products with numbers that are made once a block; the context's keys
and values of all layers are one product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.cache import DraftCache
from draftproof.drafters.learned.modules import Linear, RMSNorm, Rotation
from draftproof.targets.norms import Norm, norm_beside_opposite

Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
MakeProduct: TypeAlias = Callable[[torch.Tensor, nn.Parameter | None], Product]
"""From a weight [out, in] and a bias [out] or none."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """joined: queries, keys and values."""

    before: Norm
    joined: Product
    out: Product
    between: Norm
    gate_up: Product
    down: Product


class HostBlock:
    """The layers of a model for which `lean_block.is_lean` holds. It copies their weights.

    make: of products. dtype: of what goes into them and comes out of them, and of the cache.
    """

    def __init__(self, model: BlockModel, make: MakeProduct, dtype: torch.dtype) -> None:
        self.dtype = dtype
        config, layers = model.backbone.layer, list[Any](model.layers)
        self._heads, self._kv_heads, self._dim = config.num_heads, config.num_kv_heads, config.head_dim
        self._eps, self._has_norms = config.eps, config.qk_norm
        attentions = [layer.self_attn for layer in layers]
        contexts = [attention.k_proj for attention in attentions] + [attention.v_proj for attention in attentions]
        self._context = _joined(contexts, make)
        self._layers = [
            _Layer(
                before=_norm(layer.input_layernorm, dtype),
                joined=_joined([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj], make),
                out=_joined([layer.self_attn.o_proj], make),
                between=_norm(layer.post_attention_layernorm, dtype),
                gate_up=_joined([layer.mlp.gate_proj, layer.mlp.up_proj], make),
                down=_joined([layer.mlp.down_proj], make),
            )
            for layer in layers
        ]
        self._norm = _norm(model.norm, dtype)
        self._turning = torch.ones(len(layers), self._heads + self._kv_heads, self._dim, dtype=dtype)
        if self._has_norms:
            for index, attention in enumerate(attentions):
                self._turning[index, : self._heads] = _weight(attention.q_norm, dtype)
                self._turning[index, self._heads :] = _weight(attention.k_norm, dtype)

    def append(self, features: torch.Tensor, rotation: Rotation, cache: DraftCache) -> None:
        """Keys and values of the context's features [rows, n, hidden] go where `cache` was prepared for them."""
        shape = features.shape[:2]
        made = self._context(features.flatten(0, 1).to(self.dtype))
        made = made.view(*shape, 2, len(self._layers), self._kv_heads, self._dim).permute(2, 3, 0, 4, 1, 5)
        cosines, sines = self._turns(rotation, slice(self._heads, None))
        shaped = (len(self._layers), *shape, self._kv_heads, self._dim)
        keys = self._turned(made[0], *(part.view(shaped).transpose(2, 3) for part in (cosines, sines)))
        cache.write(keys, made[1])

    def hidden(
        self, block: torch.Tensor, rotation: Rotation, cache: DraftCache, masks: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """block [rows, n, hidden] to hidden states after the final norm; masks: one per layer, [rows, 1, n, keys], or
        None where all keys are seen.

        `cache` was prepared for the block.
        """
        (rows, width), groups = block.shape[:2], self._heads // self._kv_heads
        residual = block.flatten(0, 1).to(self.dtype)
        cosines, sines = self._turns(rotation, slice(None))
        repeated = {id(mask): None if mask is None else mask.repeat(1, 1, groups, 1) for mask in masks}
        for index, (layer, mask) in enumerate(zip(self._layers, masks, strict=True)):
            made = layer.joined(layer.before(residual)).view(rows * width, -1, self._dim)
            turned = self._turned(made[:, : self._heads + self._kv_heads], cosines[index], sines[index])
            # The query heads that share a key head are stacked along the queries: keys are read where they lie.
            query = turned[:, : self._heads].reshape(rows, width, self._kv_heads, groups, self._dim)
            attended = scaled_dot_product_attention(
                query.permute(0, 2, 3, 1, 4).flatten(2, 3),
                *cache.update(
                    turned[:, self._heads :].view(rows, width, self._kv_heads, self._dim).transpose(1, 2),
                    made[:, self._heads + self._kv_heads :]
                    .view(rows, width, self._kv_heads, self._dim)
                    .transpose(1, 2),
                    index,
                ),
                attn_mask=repeated[id(mask)],
                scale=self._dim**-0.5,
            )
            attended = attended.view(rows, self._kv_heads, groups, width, self._dim).permute(0, 3, 1, 2, 4)
            residual = residual + layer.out(attended.reshape(rows * width, -1))
            gate, up = layer.gate_up(layer.between(residual)).chunk(2, dim=-1)
            residual = residual + layer.down(silu(gate).mul_(up))
        return self._norm(residual).view(block.shape).to(block.dtype)

    def _turns(self, rotation: Rotation, heads: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """For `_turned`, [layers, tokens, heads, dim] each: the norms' weights are in them."""
        cosines, sines = (part.flatten(0, 1).to(self.dtype)[:, None] for part in rotation)
        weights = self._turning[:, None, heads]
        low, high = weights.chunk(2, dim=-1)
        return weights * cosines, torch.cat((-high, low), dim=-1) * sines

    def _turned(self, states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """Normed, if this model's are, and rotated: the last dimension's halves are a pair."""
        if self._has_norms:
            states = norm_beside_opposite(states, None, self._eps)
        return torch.addcmul(states * cosines, states.roll(self._dim // 2, dims=-1), sines)


def _norm(norm: RMSNorm, dtype: torch.dtype) -> Norm:
    return Norm(_weight(norm, dtype), norm.eps)


def _weight(norm: RMSNorm, dtype: torch.dtype) -> torch.Tensor:
    return norm.weight.detach().to(dtype)


def _joined(linears: Sequence[Linear], make: MakeProduct) -> Product:
    """Several linear layers as one product."""
    biases = [layer.bias.detach() for layer in linears if layer.bias is not None]
    bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
    return make(torch.cat([layer.weight.detach() for layer in linears]), bias)
