"""From a config.json's keys to the drafter's layers: sizes, norms, rotary embedding, which layer slides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftproof.drafters.learned.modules import LayerConfig
from draftproof.errors import ModelError, UnsupportedModelError

FULL, SLIDING = "full_attention", "sliding_attention"
_ROPE_KEYS = ("rope_parameters", "rope_scaling")
# Changes of the forward that are not computed here.
_UNSUPPORTED = ("attention_sink_bias", "attention_sinks", "num_experts", "num_local_experts")


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """layer: every layer's sizes. windows: for each layer its sliding window, None for full attention.
    rope: keyword arguments of a transformers Qwen3Config that its rotary embedding is built from."""

    layer: LayerConfig
    num_layers: int
    vocab_size: int
    windows: tuple[int | None, ...]
    rope: Mapping[str, Any]


def backbone_config(config: Mapping[str, Any], *, qk_norm: bool, where: str) -> BackboneConfig:
    """Raises ModelError for a missing key, UnsupportedModelError for what isn't computed."""
    for key in _UNSUPPORTED:
        if config.get(key):
            raise UnsupportedModelError(f"{where}: {key}={config[key]!r} in the drafter's config is not supported")
    if str(config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise UnsupportedModelError(f"{where}: hidden_act={config['hidden_act']!r}; drafters with silu are supported")
    hidden, heads = _integer(config, "hidden_size", where), _integer(config, "num_attention_heads", where)
    head_dim = int(config.get("head_dim") or hidden // heads)
    kind = str(config.get("model_type", ""))
    native = kind.startswith(("qwen3_5", "qwen3_next"))
    rope = rope_settings(config)
    rope["head_dim"] = int(head_dim * float(rope.pop("partial_rotary_factor")))
    rope["max_position_embeddings"] = int(config.get("max_position_embeddings") or 32768)
    layers = _integer(config, "num_hidden_layers", where)
    return BackboneConfig(
        layer=LayerConfig(
            hidden_size=hidden,
            intermediate_size=_integer(config, "intermediate_size", where),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            eps=float(config.get("rms_norm_eps", config.get("norm_eps", 1e-6))),
            attention_bias=bool(config.get("attention_bias", False)),
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=qk_norm,
            gated=native and bool(config.get("attn_output_gate", True)),
            norm_offset=native,
            interleaved=kind.startswith("lfm2"),
        ),
        num_layers=layers,
        vocab_size=_integer(config, "vocab_size", where),
        windows=_windows(config, layers, where),
        rope=rope,
    )


def rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """{"rope_parameters", "partial_rotary_factor"} from any of the places where configurations keep them."""
    found: dict[str, Any] = {}
    for key in _ROPE_KEYS:
        found |= {name: value for name, value in (config.get(key) or {}).items() if value is not None}
    if "type" in found:
        found.setdefault("rope_type", found.pop("type"))
    found.setdefault("rope_type", "default")
    found.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    partial = found.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    return {"rope_parameters": found, "partial_rotary_factor": partial}


def rotary_embedding(backbone: BackboneConfig) -> Any:
    """A transformers module: (any tensor of the dtype, positions [rows, n]) -> cosines and sines."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    rotary: Any = Qwen3RotaryEmbedding
    return rotary(Qwen3Config(**backbone.rope))


def _windows(config: Mapping[str, Any], num_layers: int, where: str) -> tuple[int | None, ...]:
    kinds = list(config.get("layer_types") or [FULL] * num_layers)
    if len(kinds) != num_layers or set(kinds) - {FULL, SLIDING}:
        raise ModelError(f"{where}: layer_types={kinds} must be {num_layers} of {FULL} and {SLIDING}")
    window = config.get("sliding_window")
    if SLIDING in kinds and not window:
        raise ModelError(f"{where}: layer_types has {SLIDING}, and sliding_window is {window!r}; it must be positive")
    return tuple(int(window) if kind == SLIDING and window else None for kind in kinds)


def _integer(config: Mapping[str, Any], key: str, where: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{where}: {key}={value!r} in the drafter's config.json; it must be a positive integer")
    return value
