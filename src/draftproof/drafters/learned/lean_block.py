"""A block drafter's layers as targets run theirs: joined products, one call each for what lies between them, and
attention over the cache where it lies (`targets/static/`).

Tokens of all requests lie side by side. Positions come as tensors, so nothing is read by the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from draftproof.drafters.learned.block_model import BlockLayer, BlockModel
from draftproof.drafters.learned.cache import DraftCache
from draftproof.drafters.learned.modules import Linear, RMSNorm, Rotation
from draftproof.targets.norms import Norm
from draftproof.targets.static.attention import Attention, Shape, most_tokens, power_of_two
from draftproof.targets.static.following import ChainTables, columns_of
from draftproof.targets.static.operations import Heads, operations_for
from draftproof.targets.static.steps import key_bucket
from draftproof.targets.static.tables import Bucket, Kind, Tables


def is_lean(model: BlockModel) -> bool:
    """Are its layers of the plain kind, with nothing beside attention, norms and gate?"""
    config, backbone = model.backbone.layer, model.backbone
    plain = not (config.gated or config.norm_offset or config.interleaved)
    turned = int(backbone.rope["head_dim"]) == config.head_dim
    return plain and turned and not model.layout.conv_kernel_size


@dataclass(frozen=True, slots=True)
class _Product:
    """x · weightᵀ + bias, of several linear layers at once."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, linears: Sequence[Linear]) -> _Product:
        """The layers' weights become views of one tensor, if they aren't yet."""
        weight = _together([layer.weight for layer in linears])
        biases = [layer.bias for layer in linears if layer.bias is not None]
        sizes = [layer.weight.shape[0] for layer in linears]
        for layer, part in zip(linears, torch.split(weight, sizes), strict=True):
            layer.weight = nn.Parameter(part, requires_grad=False)
        return cls(weight, torch.cat([bias.detach() for bias in biases]) if biases else None)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        return linear(features, self.weight, self.bias)

    def after(self, first: int) -> _Product:
        """Its outputs from `first` on."""
        return _Product(self.weight[first:], None if self.bias is None else self.bias[first:])


@dataclass(frozen=True, slots=True)
class _Layer:
    before: Norm
    joined: _Product
    heads: Heads
    keys_values: _Product
    stored: Heads
    out: _Product
    between: Norm
    gate_up: _Product
    down: _Product

    @classmethod
    def of(cls, layer: BlockLayer) -> _Layer:
        attention, mlp, config = layer.self_attn, layer.mlp, layer.self_attn.config
        norms = (_norm(attention.q_norm), _norm(attention.k_norm)) if config.qk_norm else (None, None)
        joined = _Product.of([attention.q_proj, attention.k_proj, attention.v_proj])
        return cls(
            before=_norm(layer.input_layernorm),
            joined=joined,
            heads=Heads(config.num_heads, config.num_kv_heads, config.head_dim, *norms),
            keys_values=joined.after(config.num_heads * config.head_dim),
            stored=Heads(0, config.num_kv_heads, config.head_dim, *norms),
            out=_Product.of([attention.o_proj]),
            between=_norm(layer.post_attention_layernorm),
            gate_up=_Product.of([mlp.gate_proj, mlp.up_proj]),
            down=_Product.of([mlp.down_proj]),
        )


class LeanBlock:
    """Blocks of `num_requests` slots whose caches have at most `num_keys` entries, the block's own included.

    Raises nothing of its own: call it where `is_lean`.
    """

    def __init__(self, model: BlockModel, cache: DraftCache, *, num_requests: int, num_keys: int) -> None:
        self._model, self._cache = model, cache
        device = cache.keys.device
        self._operations = operations_for(device)
        layers: list[Any] = list(model.layers)
        self._layers, self._norm = [_Layer.of(layer) for layer in layers], _norm(model.norm)
        self._features = _Product.of([model.fc])
        self._hidden_norm = _norm(model.hidden_norm)
        config, layout = model.backbone.layer, model.layout
        size, groups = layout.block_size, config.num_heads // config.num_kv_heads
        most = min(most_tokens(groups), size)
        self._scale = config.head_dim**-0.5
        self._tables: dict[bool, tuple[Tables, ChainTables]] = {}
        self._attentions: list[tuple[Attention, Tables]] = []
        made: dict[Any, Attention] = {}
        for window, causal in zip(model.backbone.windows, layout.causal, strict=True):
            bucket = Bucket(
                num_tokens=num_requests * size,
                width=power_of_two(most),
                num_rows=power_of_two(num_requests * -(-size // most)),
                num_keys=key_bucket(num_keys),
                kind=Kind.CHAIN if causal else Kind.BLOCK,
                num_links=0,
                with_logits=False,
            )
            if causal not in self._tables:
                tables = Tables(bucket, device)
                self._tables[causal] = tables, ChainTables(tables, num_requests, size, most)
            shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, config.head_dim, window)
            if (shape, causal) not in made:
                made[shape, causal] = Attention(shape, bucket, device, invariant=False)
            self._attentions.append((made[shape, causal], self._tables[causal][0]))

    def extend(self, slots: torch.Tensor, positions: torch.Tensor, taps: torch.Tensor, is_real: torch.Tensor) -> None:
        """Write the context's keys and values at positions [requests, n] of `slots`, from taps [requests, n, …].

        is_real: as `ChainTables.fill` takes it.
        """
        features = self._operations.add_norm(self._features(taps.flatten(0, 1)), None, self._hidden_norm)
        cosines, sines = self._rotation(features, positions)
        columns = columns_of(positions, slots * self._cache.capacity, is_real)
        for index, layer in enumerate(self._layers):
            keys, values = self._cache.columns(index)
            made = layer.keys_values(features)
            self._operations.place(made, layer.stored, cosines, sines, columns, keys, values)

    def hidden(
        self,
        slots: torch.Tensor,
        starts: torch.Tensor,
        ids: torch.Tensor,
        table: torch.Tensor,
        is_real: torch.Tensor,
    ) -> torch.Tensor:
        """ids [requests, block_size] from `starts` on: [requests, block_size, hidden] after the final norm.

        table: the target's embedding. is_real: as in `extend`. The block's own keys stay in the cache until something
        else is written there.
        """
        residual = self._model.embed(table, ids.flatten())
        offsets = (slots * self._cache.capacity).int()
        for _, fill in self._tables.values():
            fill.fill(ids, starts, offsets, is_real)
        tables = next(iter(self._tables.values()))[0]
        cosines, sines = self._rotation(residual, tables.positions[None])
        operations = self._operations
        norms = [*(layer.before for layer in self._layers), self._norm]
        normed = operations.add_norm(residual, None, norms[0])
        for index, (layer, (attend, read)) in enumerate(zip(self._layers, self._attentions, strict=True)):
            keys, values = self._cache.columns(index)
            made = layer.joined(normed)
            query = operations.place(made, layer.heads, cosines, sines, tables.columns, keys, values)
            attended = attend(query, keys, values, read, self._scale).flatten(1)
            normed = operations.add_product_norm(residual, layer.out, attended, layer.between)
            gated = operations.gated(layer.gate_up, normed)
            normed = operations.add_product_norm(residual, layer.down, gated, norms[index + 1])
        return normed.view(*ids.shape, -1)

    def _rotation(self, like: torch.Tensor, positions: torch.Tensor) -> Rotation:
        """[tokens, dim] each."""
        cosines, sines = self._model.rotation(like, positions)
        return cosines.flatten(0, 1).contiguous(), sines.flatten(0, 1).contiguous()


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.weight.detach(), norm.eps)


def _together(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """One after another in one tensor: as they lie, or copied."""
    first, begin = weights[0].detach(), weights[0].storage_offset()
    storage = first.untyped_storage().data_ptr()
    for weight in weights:
        if weight.untyped_storage().data_ptr() != storage or weight.storage_offset() != begin:
            return torch.cat([weight.detach() for weight in weights])
        begin += weight.numel()
    return first.as_strided((sum(len(weight) for weight in weights), first.shape[1]), first.stride())
