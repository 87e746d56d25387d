"""The weights that come with the package, written as every packaging would write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.replay_learned import write_second
from draftproof.drafters.learned import own
from draftproof.drafters.learned.checkpoint import Checkpoint

Tensors = dict[str, torch.Tensor]
_DOMINO_SIZE = 8


def _block(method: str) -> tuple[dict[str, Any], dict[str, Any], Tensors]:
    """(layers' keys, {block_size, mask_token_id, taps by the output of a layer}, tensors of the whole vocabulary)."""
    checkpoint = Checkpoint(own.FOLDER / method)
    config = checkpoint.config
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    offsets = tensors.pop("d2t")
    tensors.pop("t2d")
    name = "markov_head.markov_w2.weight"
    if name in tensors:
        whole = torch.zeros(config["transformer_layer_config"]["vocab_size"], tensors[name].shape[1])
        whole[torch.arange(len(offsets)) + offsets] = tensors[name]
        tensors[name] = whole
    facts = {"mask_token_id": config["mask_token_id"]}
    facts["target_layer_ids"] = [tap - 1 for tap in config["aux_hidden_state_layer_ids"]]
    return config["transformer_layer_config"] | {"block_size": config["block_size"]}, facts, tensors


def _zlab() -> tuple[dict[str, Any], Tensors]:
    keys, facts, tensors = _block("dflash")
    return keys | {"architectures": ["DFlashDraftModel"], "dflash_config": facts}, tensors


def _transformers() -> tuple[dict[str, Any], Tensors]:
    keys, facts, tensors = _block("dflash")
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    return keys | facts | {"model_type": "muse_glimmer_assistant"}, {
        renamed.get(name, name): tensor for name, tensor in tensors.items()
    }


def _domino() -> tuple[dict[str, Any], Tensors]:
    """What its recurrent head adds is zero."""
    keys, facts, tensors = _block("dflash")
    generator, size, hidden = torch.Generator().manual_seed(1), _DOMINO_SIZE, keys["hidden_size"]

    def random(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(shape, generator=generator)

    tensors |= {
        "prefix_gru.weight_ih_l0": random(3 * size, hidden), "prefix_gru.weight_hh_l0": random(3 * size, size),
        "embed_proj.0.weight": random(size, hidden + size),
        "embed_proj.2.weight": torch.zeros(keys["vocab_size"], size),
    }  # fmt: skip
    head = {"projector_type": "domino", "gru_hidden_dim": size, "emb_dim": size, "shift_label": False}
    return keys | {"architectures": ["DFlashDraftModel"], "dflash_config": facts | head}, tensors


def _unknown() -> tuple[dict[str, Any], Tensors]:
    keys, facts, tensors = _block("dflash")
    return keys | facts, tensors


def _unknown_by_input() -> tuple[dict[str, Any], Tensors]:
    config, tensors = _unknown()
    return config | {"target_layer_ids": [tap + 1 for tap in config["target_layer_ids"]]}, tensors


def _heads() -> dict[str, Any]:
    config = Checkpoint(own.FOLDER / "dspark").config
    names = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
    return {name: config[name] for name in names}


def _deepspec() -> tuple[dict[str, Any], Tensors]:
    keys, facts, tensors = _block("dspark")
    return keys | facts | _heads() | {"num_anchors": 96}, tensors


def _specforge() -> tuple[dict[str, Any], Tensors]:
    keys, facts, tensors = _block("dspark")
    return keys | {"dflash_config": facts | _heads() | {"projector_type": "dspark"}}, tensors


def _silent() -> tuple[dict[str, Any], Tensors]:
    """It doesn't say where the anchor is."""
    config, tensors = _same("dspark")()
    stated = ("sample_from_anchor", "speculators_config")
    return {name: value for name, value in config.items() if name not in stated}, tensors


def _same(method: str) -> Callable[[], tuple[dict[str, Any], Tensors]]:
    def made() -> tuple[dict[str, Any], Tensors]:
        checkpoint = Checkpoint(own.FOLDER / method)
        config = {name: value for name, value in checkpoint.config.items() if name != "quantization_config"}
        return config, {name: checkpoint.tensor(name) for name in checkpoint.names}

    return made


def _eagle3(packaging: str) -> Callable[[], tuple[dict[str, Any], Tensors]]:
    def made() -> tuple[dict[str, Any], Tensors]:
        config, tensors = _same("eagle3")()
        tensors = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
        named = config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]
        if packaging == "DeepSpec":
            return config | {"target_layer_ids": named}, tensors
        rest = {"draft_vocab_size": config["draft_vocab_size"], "speculators_model_type": "eagle3"}
        taps = {"eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in named]}
        return rest | taps | {"transformer_layer_config": config}, tensors

    return made


_QWEN = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}
_SPECULATORS = {
    "eh_proj": "input_proj", "enorm": "token_layernorm", "hnorm": "hidden_layernorm",
    "shared_head.norm": "final_layernorm",
}  # fmt: skip


def _mtp(prefix: str, layer: str, names: dict[str, str]) -> Callable[[], tuple[dict[str, Any], Tensors]]:
    def made() -> tuple[dict[str, Any], Tensors]:
        config, tensors = _same("mtp")()
        renamed = {}
        for name, tensor in tensors.items():
            stem = name.removeprefix("model.layers.30.").removesuffix(".weight")
            renamed[f"{prefix}{names.get(stem, layer + stem)}.weight"] = tensor
        return config, renamed

    return made


PACKAGINGS: dict[str, tuple[str, Callable[[], tuple[dict[str, Any], Tensors]]]] = {
    "dflash, speculators": ("dflash", _same("dflash")),
    "dflash, z-lab": ("dflash", _zlab),
    "dflash, transformers": ("dflash", _transformers),
    "dflash, SpecForge domino": ("dflash", _domino),
    "dflash, unknown": ("dflash", _unknown),
    "dflash, unknown by the input of a layer": ("dflash", _unknown_by_input),
    "dspark, speculators": ("dspark", _same("dspark")),
    "dspark, speculators that leave out the anchor": ("dspark", _silent),
    "dspark, DeepSpec": ("dspark", _deepspec),
    "dspark, SpecForge dspark": ("dspark", _specforge),
    "eagle3, EAGLE/SpecForge": ("eagle3", _same("eagle3")),
    "eagle3, speculators": ("eagle3", _eagle3("speculators")),
    "eagle3, DeepSpec": ("eagle3", _eagle3("DeepSpec")),
    "mtp, DeepSeek-V3/GLM": ("mtp", _same("mtp")),
    "mtp, Qwen3-Next/Qwen3.5": ("mtp", _mtp("mtp.", "layers.0.", _QWEN)),
    "mtp, speculators": ("mtp", _mtp("mtp_layers.0.", "", _SPECULATORS)),
}
"""name -> (method, what makes its configuration and tensors). The second word is the record's packaging."""


def write_packaging(name: str, folder: Path) -> str:
    """The method; its checkpoint is in `folder` afterwards."""
    if name == "dflash 2, z-lab":
        write_second(folder)
        return "dflash"
    method, make = PACKAGINGS[name]
    config, tensors = make()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return method
