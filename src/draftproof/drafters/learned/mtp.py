"""MTP's network: one of the target's own decoder layers behind a projection of [embedding, hidden state].

    entry i reads eh_proj([enorm(emb(t_{i+1})), hnorm(h)]) with h = the target's hidden state of position i, after its
    final norm; then the layer; then norm. The result predicts t_{i+2} through the target's output layer, and is the
    hidden state of entry i + 1 when drafting goes on.
The layer is transformers' own class for this target (attention of its kind, dense or mixture of experts), always one
with full attention. Sources: DeepSeek-V3 2412.19437 section 2.2, Qwen3-Next; names in `chain_packaging.py`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn

from draftproof.drafters.learned.eagle3 import ChainModel, KeysValues
from draftproof.drafters.learned.layout import ChainLayout
from draftproof.drafters.learned.modules import Linear
from draftproof.errors import UnsupportedModelError


class MTPModel(ChainModel):
    """target_model: the transformers model that the head belongs to; classes, sizes and rotary embedding are its."""

    def __init__(self, target_model: Any, layout: ChainLayout) -> None:
        super().__init__()
        self.layout = layout
        decoder = target_model.get_decoder() if hasattr(target_model, "get_decoder") else target_model.base_model
        config = target_model.config.get_text_config(decoder=True)
        rotary = getattr(decoder, "rotary_emb", None)
        if rotary is None or _has_rope_per_layer(config):
            raise UnsupportedModelError(
                f"{type(target_model).__name__} has no single rotary embedding, which its MTP layer would share"
            )
        self.block = _layer(decoder, config)
        # Of transformers' own class; a target's norms may be replaced by faster ones.
        norms: Any = type(getattr(self.block, "input_layernorm", decoder.norm))
        hidden, eps = int(config.hidden_size), float(getattr(config, "rms_norm_eps", 1e-6))
        self.enorm, self.hnorm, self.norm = norms(hidden, eps=eps), norms(hidden, eps=eps), norms(hidden, eps=eps)
        self.eh_proj = Linear(2 * hidden, hidden)
        names = inspect.signature(self.block.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._rotary = (rotary,)  # in a tuple: it stays the target's
        self.num_cache_layers = 1
        self.to(target_model.dtype)
        self.cache_heads, self.cache_dims = self._cache_sizes(target_model.device)

    def features(self, taps: torch.Tensor) -> torch.Tensor:
        return taps

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        cache: KeysValues,
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1))
        rotary: Any = self._rotary[0]
        out: Any = self.block(
            inputs,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=rotary(inputs, positions),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        normed: torch.Tensor = self.norm(out[0] if isinstance(out, tuple) else out)
        return normed, normed

    @torch.no_grad()
    def _cache_sizes(self, device: torch.device) -> tuple[int, tuple[int, int]]:
        """What the layer caches for one token, by running it once: latent attention differs from what configs say."""
        seen = _Recorder()
        kept = self.training
        self.eval().to(device)
        token = torch.zeros(1, 1, self.eh_proj.weight.shape[0], dtype=self.eh_proj.weight.dtype, device=device)
        mask = token.new_zeros(1, 1, 1, 1)
        self(token, token, torch.zeros(1, 1, dtype=torch.long, device=device), seen, mask)
        self.train(kept)
        return seen.sizes


class _Recorder:
    sizes: tuple[int, tuple[int, int]]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.sizes = (key_states.shape[1], (key_states.shape[3], value_states.shape[3]))
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _layer(decoder: Any, config: Any) -> nn.Module:
    """A layer of the decoder's class as it would stand behind the last one, its cache index 0, zeroed."""
    kinds = getattr(config, "layer_types", None)
    full = [i for i in range(len(decoder.layers)) if kinds is None or kinds[i] == "full_attention"]
    if not full:
        raise UnsupportedModelError("the target has no layer with full attention, which an MTP layer is")
    settings, count = copy.deepcopy(config), len(decoder.layers)
    for name, value in list(vars(settings).items()):
        # Lists with an entry per layer get one for the layer behind the last.
        if isinstance(value, list) and len(value) == count:
            setattr(settings, name, [*value, "full_attention" if name == "layer_types" else value[-1]])
    layer_class: Any = type(decoder.layers[full[-1]])
    layer: nn.Module = layer_class(settings, count)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0  # type: ignore[assignment]
    return layer


def _has_rope_per_layer(config: Any) -> bool:
    settings = getattr(config, "rope_parameters", None) or {}
    return any(isinstance(value, dict) for value in settings.values())
