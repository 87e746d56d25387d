"""A tiny target and drafters of all five kinds for it, written as their packages would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftproof.targets.hf import HFTarget
from tests.targets.models import VOCAB_SIZE, tiny_model

NUM_LAYERS, HIDDEN = 6, 32
KEYS: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": VOCAB_SIZE, "hidden_size": HIDDEN, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024, "rope_theta": 10000.0,
}  # fmt: skip
METHODS = ("dflash", "dflash 2", "dspark", "mtp", "eagle3")


def tiny_target(num_slots: int = 2, *, invariant: bool = True, dtype: torch.dtype = torch.float32) -> HFTarget:
    """Six layers of width 32; a flat law, so that random drafts are accepted now and then."""
    model = tiny_model("llama", dtype, num_hidden_layers=NUM_LAYERS, initializer_range=0.15)
    return HFTarget(model, num_slots=num_slots, invariant=invariant)


def write_drafter(method: str, folder: Path, *, block_size: int = 16, seed: int = 5, **changes: Any) -> str:
    """A folder with random weights; `changes` are keys of its config.json.

    method: one of METHODS, or "dspark half", whose vocabulary is every other token of the target's.
    """
    config, shapes = _config_and_shapes(method, block_size)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = 0.3 * torch.randn(shape, generator=generator)
        tensors[name] = 1.0 + values if "norm" in name and len(shape) == 1 else values
    if method in ("eagle3", "dspark half"):
        ids = torch.arange(0, VOCAB_SIZE, 2)
        tensors["d2t"] = ids - torch.arange(len(ids))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return str(folder)


def _config_and_shapes(method: str, block_size: int) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    if method == "mtp":
        prefix = f"model.layers.{NUM_LAYERS}."
        # The tiny llama's own sizes: heads of 8, 64 inner units.
        shapes = {prefix + name: shape for name, shape in _layer(HIDDEN, 64, norms=False).items()}
        for name in ("enorm", "hnorm", "shared_head.norm"):
            shapes[f"{prefix}{name}.weight"] = (HIDDEN,)
        shapes[f"{prefix}eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
        return {"model_type": "llama", "num_nextn_predict_layers": 1}, shapes
    if method == "eagle3":
        shapes = {f"midlayer.{name}": shape for name, shape in _layer(2 * HIDDEN, 48, norms=False).items()}
        shapes |= {
            "midlayer.hidden_norm.weight": (HIDDEN,),
            "norm.weight": (HIDDEN,),
            "fc.weight": (HIDDEN, 3 * HIDDEN),
        }
        shapes["lm_head.weight"] = (VOCAB_SIZE // 2, HIDDEN)
        taps = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}}
        return KEYS | {"num_hidden_layers": 1, "draft_vocab_size": VOCAB_SIZE // 2} | taps, shapes
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}
    for index in range(2):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in _layer(HIDDEN, 48, norms=True).items()}
    inner = {"mask_token_id": VOCAB_SIZE - 1, "target_layer_ids": [1, 3]}
    if method.startswith("dspark"):
        size = VOCAB_SIZE // 2 if method == "dspark half" else VOCAB_SIZE
        shapes |= {"markov_head.markov_w1.weight": (VOCAB_SIZE, 6), "markov_head.markov_w2.weight": (size, 6)}
        shapes |= {"confidence_head.proj.weight": (1, HIDDEN + 6), "confidence_head.proj.bias": (1,)}
        heads = {"markov_rank": 6, "enable_confidence_head": True, "confidence_head_with_markov": True}
        if method == "dspark half":
            whose = {"speculators_model_type": "dspark", "transformer_layer_config": KEYS, "sample_from_anchor": True}
            taps = {"aux_hidden_state_layer_ids": [2, 4], "mask_token_id": VOCAB_SIZE - 1, "draft_vocab_size": size}
            return whose | taps | heads | {"block_size": block_size}, shapes
        return KEYS | {"block_size": block_size, "num_anchors": 8} | inner | heads, shapes
    config = KEYS | {"block_size": block_size, "dflash_config": inner, "architectures": ["DFlashDraftModel"]}
    if method == "dflash 2":
        for index in range(2):
            for conv in ("attention_conv", "mlp_conv"):
                shapes[f"layers.{index}.{conv}.base_kernel"] = (2, 2, HIDDEN)
                shapes[f"layers.{index}.{conv}.kernel_projection.weight"] = (2 * 2 * HIDDEN // 8, HIDDEN)
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (VOCAB_SIZE, 6)
        shapes["candidate_selector.hidden_projection.weight"] = (6, HIDDEN)
        config |= {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 8}
    return config, shapes


def _layer(input_size: int, inner: int, *, norms: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (32, input_size), "self_attn.k_proj.weight": (16, input_size),
        "self_attn.v_proj.weight": (16, input_size), "self_attn.o_proj.weight": (HIDDEN, 32),
        "mlp.gate_proj.weight": (inner, HIDDEN), "mlp.up_proj.weight": (inner, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, inner), "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }  # fmt: skip
    if norms:
        shapes |= {"self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,)}
    return shapes


def config_method(method: str) -> str:
    """The name in `speculative_config`."""
    return method.split()[0]
