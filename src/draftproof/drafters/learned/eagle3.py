"""EAGLE-3's network: one layer that reads [embedding of the next token, feature], and then its own hidden state.

    f_i   = fc([taps of position i])                              the target's low, middle and high hidden states
    entry i reads concat[input_layernorm(emb(t_{i+1})), hidden_norm(h)] with h = f_i, position index i; residual h
            (hidden_norm(h) under norm_before_residual); its output o_i predicts t_{i+2} through norm and output layer
    drafting goes on with entry i + 1 from h = o_i (norm(o_i) under recycles_normed) and the token just drafted
Variants: fc over normed taps (each by its own norm, or all by one); further layers after the first; Qwen3's query and
key norms or none; a reduced vocabulary with an output layer of its own.
Sources: EAGLE-3 2503.01840; SpecForge 0.2.0, speculators 0.9.0, DeepSpec, AngelSlim (`chain_packaging.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from draftproof.drafters.learned.backbone_config import BackboneConfig, rotary_embedding
from draftproof.drafters.learned.layout import ChainLayout
from draftproof.drafters.learned.modules import MLP, Attend, Attention, Linear, RMSNorm, Rotation


class KeysValues(Protocol):
    """What a layer writes its keys and values to, and gets those that it attends to from."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, heads, n, dim] each; returns [rows, heads, keys, dim] each."""
        ...


class ChainModel(nn.Module):
    """What `chain_drafter.py` runs: EAGLE-3 and MTP."""

    layout: ChainLayout
    num_cache_layers: int
    cache_heads: int
    cache_dims: tuple[int, int]

    def features(self, taps: torch.Tensor) -> torch.Tensor:
        """[rows, n, taps * target hidden] to what the first step reads as hidden state, [rows, n, hidden]."""
        raise NotImplementedError

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: KeysValues,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """embedded and hidden [rows, n, hidden], positions [rows, n], additive mask [rows, 1, n, keys].

        Returns what the next step reads as hidden state and what the output layer reads, [rows, n, hidden] each.
        """
        raise NotImplementedError


class FirstLayer(nn.Module):
    """The layer whose attention reads embedding and hidden state side by side."""

    def __init__(self, backbone: BackboneConfig, norm_before_residual: bool) -> None:
        super().__init__()
        config = backbone.layer
        self.self_attn, self.mlp = Attention(config, 2 * config.hidden_size), MLP(config)
        self.hidden_norm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.norm_before_residual = norm_before_residual

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        normed = self.hidden_norm(hidden)
        source = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        residual = normed if self.norm_before_residual else hidden
        hidden = residual + self.self_attn(source, rotation, attend)
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class FurtherLayer(nn.Module):
    """A plain decoder layer."""

    def __init__(self, backbone: BackboneConfig) -> None:
        super().__init__()
        config = backbone.layer
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.eps, config.norm_offset)

    def forward(self, hidden: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, attend)
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3Model(ChainModel):
    """The drafter's own weights; the embedding is the target's."""

    def __init__(self, backbone: BackboneConfig, layout: ChainLayout, target_hidden_size: int) -> None:
        super().__init__()
        self.backbone, self.layout = backbone, layout
        config, hidden, num_taps = backbone.layer, backbone.layer.hidden_size, len(layout.tap_ids)
        self.fc = Linear(num_taps * target_hidden_size, hidden)
        self.input_norm = RMSNorm(num_taps * target_hidden_size, config.eps) if layout.norm_before_fc else None
        self.fc_norm: nn.ModuleList | None = None
        if layout.norm_each_tap:
            self.fc_norm = nn.ModuleList(RMSNorm(target_hidden_size, config.eps) for _ in range(num_taps))
        rest = [FurtherLayer(backbone) for _ in range(backbone.num_layers - 1)]
        self.layers = nn.ModuleList([FirstLayer(backbone, layout.norm_before_residual), *rest])
        self.norm = RMSNorm(hidden, config.eps, config.norm_offset)
        size = layout.draft_vocab_size or backbone.vocab_size
        self.lm_head = Linear(hidden, size) if layout.has_own_head else None
        self._rotary = (rotary_embedding(backbone),)  # in a tuple: no part of the checkpoint
        self.num_cache_layers, self.cache_heads = backbone.num_layers, config.num_kv_heads
        self.cache_dims = (config.head_dim, config.head_dim)

    def features(self, taps: torch.Tensor) -> torch.Tensor:
        if self.input_norm is not None:
            taps = self.input_norm(taps)
        if self.fc_norm is not None:
            parts = taps.chunk(len(self.fc_norm), dim=-1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        out: torch.Tensor = self.fc(taps)
        return out

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: KeysValues,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rotary: Any = self._rotary[0]
        rotation: Rotation = rotary.to(hidden.device)(hidden, positions)
        for index, layer in enumerate(self.layers):
            attend = _attend(cache, index, mask)
            hidden = layer(hidden, rotation, attend) if index else layer(embedded, hidden, rotation, attend)
        normed: torch.Tensor = self.norm(hidden)
        return (normed if self.layout.recycles_normed else hidden), normed


def _attend(cache: KeysValues, index: int, mask: torch.Tensor) -> Attend:
    def attend(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return *cache.update(keys, values, index), mask

    return attend
