"""EAGLE-3 and MTP checkpoints: what their names and numbers mean.

| packaging | recognised by | taps |
|---|---|---|
| speculators eagle3 | `speculators_model_type` or `transformer_layer_config` | input of layer k |
| DeepSpec eagle3 | `layers.0.*` with `target_layer_ids` | output of layer k, -1 the embedding |
| EAGLE, SpecForge, AngelSlim | `midlayer.*` | output of layer k; 1, half - 1 and last but three where none are named |
| DeepSeek-V3, GLM mtp | `model.layers.N.eh_proj`, N the target's number of layers | after the final norm |
| Qwen3-Next, Qwen3.5 mtp | `mtp.fc` | after the final norm |
| speculators mtp | `mtp_layers.0.input_proj` | after the final norm |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.layout import OTHER_TARGET, ChainLayout
from draftproof.errors import ModelError, UnsupportedModelError

Rename = Callable[[str], str | None]
_AFTER_NORM = "after the final norm"
_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight$")


def eagle3_layout(checkpoint: Checkpoint, num_target_layers: int) -> tuple[Mapping[str, Any], ChainLayout]:
    """(the keys that describe the layers, the layout). Raises ModelError and UnsupportedModelError."""
    config, where = checkpoint.config, str(checkpoint.folder)
    keys: Mapping[str, Any] = config.get("transformer_layer_config") or config
    spread = [2, num_target_layers // 2, num_target_layers - 3]
    if "transformer_layer_config" in config or "speculators_model_type" in config:
        packaging, convention = "speculators", "input of layer id"
        taps = list(config.get("eagle_aux_hidden_state_layer_ids") or spread)
    elif any(name.startswith("midlayer.") for name in checkpoint.names):
        packaging, convention = "EAGLE/SpecForge", "output of layer id"
        named = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
        taps = [tap + 1 for tap in named] if named else spread
    elif "target_layer_ids" in config:
        packaging, convention = "DeepSpec", "output of layer id, -1 the embedding"
        taps = [tap + 1 for tap in config["target_layer_ids"]]
    else:
        raise ModelError(
            f"{where} is no EAGLE-3 checkpoint: it has neither midlayer.* tensors, nor target_layer_ids, nor "
            "transformer_layer_config"
        )
    if not taps or not all(isinstance(tap, int) and 0 <= tap <= num_target_layers for tap in taps):
        raise ModelError(
            f"{where}: the drafter reads the target's hidden states {taps}, and this target has {num_target_layers} "
            f"layers; {OTHER_TARGET}"
        )
    if packaging == "EAGLE/SpecForge" and not config.get("norm_output", True):
        raise UnsupportedModelError(f"{where}: norm_output=false in SpecForge's packaging is not supported")
    vocab = int(keys.get("vocab_size", 0))
    draft_size = int(config.get("draft_vocab_size") or vocab)
    return keys, ChainLayout(
        method="eagle3",
        packaging=packaging,
        tap_ids=tuple(taps),
        tap_convention=convention,
        draft_vocab_size=draft_size if draft_size != vocab else None,
        has_own_head="lm_head.weight" in checkpoint,
        num_layers=int(keys.get("num_hidden_layers") or 1),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_before_fc=bool(config.get("norm_before_fc", False)),
        norm_each_tap=bool(config.get("fc_norm", False)),
        recycles_normed=packaging == "speculators" and bool(config.get("norm_output", False)),
    )


def eagle3_names(layout: ChainLayout) -> Rename:
    """A checkpoint's tensor name to `Eagle3Model`'s."""

    def rename(name: str) -> str | None:
        name = name.removeprefix("model.")
        if name in ("t2d", "d2t") or name.endswith("inv_freq"):
            return None
        if name.startswith(("embed_tokens.", "verifier_norm.", "verifier_lm_head.", "rotary_emb.")):
            return None
        return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name

    return rename


def mtp_layout(checkpoint: Checkpoint, num_target_layers: int) -> tuple[ChainLayout, Rename]:
    """The layout and the names. Raises ModelError where there is no head, UnsupportedModelError for several."""
    where, names = str(checkpoint.folder), checkpoint.names
    prefix = f"model.layers.{num_target_layers}."
    rename: Rename
    if "mtp.fc.weight" in checkpoint:
        packaging, rename = "Qwen3-Next/Qwen3.5", _qwen_names
        several = any(name.startswith("mtp.layers.1.") for name in names)
    elif "mtp_layers.0.input_proj.weight" in checkpoint:
        packaging, rename = "speculators", _speculators_names
        several = any(name.startswith("mtp_layers.1.") for name in names)
    elif prefix + "eh_proj.weight" in checkpoint:
        packaging, rename = "DeepSeek-V3/GLM", _deepseek_names(prefix)
        several = f"model.layers.{num_target_layers + 1}.eh_proj.weight" in checkpoint
    else:
        elsewhere = sorted(name for name in names if name.endswith(("eh_proj.weight", ".e_proj.weight")))
        found = f"; it has {elsewhere[0]}" if elsewhere else ""
        raise ModelError(
            f"{where} holds no MTP layer for a target of {num_target_layers} layers: looked for "
            f"{prefix}eh_proj.weight, mtp.fc.weight and mtp_layers.0.input_proj.weight{found}; {OTHER_TARGET}"
        )
    if several:
        raise UnsupportedModelError(f"{where} has several MTP layers; heads of one layer, run again, are supported")
    layout = ChainLayout(
        method="mtp",
        packaging=packaging,
        tap_ids=(num_target_layers,),
        tap_convention=_AFTER_NORM,
        concat="[embedding, hidden]",
    )
    return layout, rename


def _qwen_names(name: str) -> str | None:
    if not name.startswith("mtp."):
        return None
    name = name.removeprefix("mtp.")
    if name.startswith("layers.0."):
        return "block." + name.removeprefix("layers.0.")
    parts = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "norm"}
    head, _, rest = name.partition(".")
    return f"{parts[head]}.{rest}" if head in parts else "unknown." + name


def _speculators_names(name: str) -> str | None:
    if not name.startswith("mtp_layers.0."):
        return None
    name = name.removeprefix("mtp_layers.0.")
    parts = {"input_proj": "eh_proj", "token_layernorm": "enorm", "hidden_layernorm": "hnorm",
             "final_layernorm": "norm"}  # fmt: skip
    head, _, rest = name.partition(".")
    return f"{parts[head]}.{rest}" if head in parts else "block." + name


def _deepseek_names(prefix: str) -> Rename:
    def rename(name: str) -> str | None:
        if not name.startswith(prefix):
            return None
        name = name.removeprefix(prefix)
        if name.startswith(("embed_tokens.", "shared_head.head.")) or name.endswith("inv_freq"):
            return None
        if name.startswith("shared_head.norm."):
            return name.removeprefix("shared_head.")
        return name if name.startswith(("enorm.", "hnorm.", "eh_proj.")) else "block." + name

    return rename


def fused_experts(
    checkpoint: Checkpoint, rename: Rename, wanted: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Experts that the file has one by one and the module in one tensor: gate_up_proj [E, 2 I, H], down_proj [E, H, I].

    Raises ModelError for an expert that is missing.
    """
    found: dict[str, dict[int, dict[str, str]]] = {}
    for name in checkpoint.names:
        match = _EXPERT.match(rename(name) or "")
        if match and f"{match[1]}.gate_up_proj" in wanted:
            found.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = name
    fused: dict[str, torch.Tensor] = {}
    for prefix, experts in found.items():
        gates, downs = [], []
        for index in range(wanted[f"{prefix}.gate_up_proj"].shape[0]):
            parts = experts.get(index, {})
            missing = {"gate_proj", "up_proj", "down_proj"} - set(parts)
            if missing:
                raise ModelError(f"{checkpoint.folder}: expert {index} of {prefix} lacks {sorted(missing)}")
            gate, up, down = (checkpoint.tensor(parts[kind]) for kind in ("gate_proj", "up_proj", "down_proj"))
            gates.append(torch.cat((gate, up)))
            downs.append(down)
        fused[f"{prefix}.gate_up_proj"], fused[f"{prefix}.down_proj"] = torch.stack(gates), torch.stack(downs)
    return fused


def without_experts(rename: Rename, fused: Mapping[str, torch.Tensor]) -> Rename:
    """The names without those of experts that were fused."""
    prefixes = {name.rpartition(".")[0] for name in fused}

    def renamed(name: str) -> str | None:
        new = rename(name)
        match = _EXPERT.match(new or "")
        return None if match and match[1] in prefixes else new

    return renamed
