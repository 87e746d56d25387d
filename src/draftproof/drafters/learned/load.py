"""Opens a drafter's checkpoint for a target: reads its packaging, checks it, prints its layout, builds the drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from draftproof.config import SpeculativeConfig
from draftproof.drafters.base import Drafter
from draftproof.drafters.learned.backbone_config import backbone_config
from draftproof.drafters.learned.block_drafter import BlockDrafter, FactorisedDrafter
from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.chain_drafter import ChainDrafter
from draftproof.drafters.learned.chain_packaging import (
    eagle3_layout,
    eagle3_names,
    fused_experts,
    mtp_layout,
    without_experts,
)
from draftproof.drafters.learned.checkpoint import Checkpoint, load_into
from draftproof.drafters.learned.drawing import Drawing
from draftproof.drafters.learned.eagle3 import ChainModel, Eagle3Model
from draftproof.drafters.learned.eight_bit import EightBitLinear, takes_eight_bits, to_eight_bits
from draftproof.drafters.learned.head import TargetEnds, check_same_target
from draftproof.drafters.learned.host_block import HostBlock
from draftproof.drafters.learned.layout import OTHER_TARGET, BlockLayout, tell
from draftproof.drafters.learned.lean_block import is_lean
from draftproof.drafters.learned.modules import Linear
from draftproof.drafters.learned.mtp import MTPModel
from draftproof.drafters.learned.own import own_drafter
from draftproof.drafters.learned.packaging import block_layouts
from draftproof.drafters.learned.probe import settled
from draftproof.drafters.learned.vocab import VocabMap
from draftproof.errors import ModelError, ParameterError, UnsupportedModelError
from draftproof.sampling import SamplerChain
from draftproof.targets.base import TappedTarget
from draftproof.targets.half_linear import too_large
from draftproof.targets.products import Product, pack_linears, product_kind

_NOT_THE_DRAFTERS = ("embed_tokens.", "verifier_norm.", "verifier_lm_head.", "rotary_emb.", "mask_embedding")


def load_learned(config: SpeculativeConfig, target: Any, chain: SamplerChain) -> Drafter:
    """The learned drafter that `config` names; `num_speculative_tokens` must not be more than it can draft.

    Raises what `load_block_drafter` and `load_chain_drafter` raise, and ParameterError.
    """
    check_target(target)
    model = own_drafter(config.method, target) if config.model is None else config.model
    if config.method in ("eagle3", "mtp"):
        return load_chain_drafter(model, target, chain, method=config.method)
    drafter = load_block_drafter(
        model, target, chain, method=config.method, confidence_threshold=config.confidence_threshold
    )
    if config.confidence_threshold and not drafter.layout.has_confidence:
        raise ParameterError(
            "confidence_threshold", config.confidence_threshold, f"0 with {model}", "it has no confidence head"
        )
    most = drafter.layout.num_drafts
    if config.topology == "chain" and config.num_speculative_tokens > most:
        raise ParameterError(
            "num_speculative_tokens", config.num_speculative_tokens, f"at most {most}, what this drafter drafts at once"
        )
    return drafter


def load_chain_drafter(model: str, target: Any, chain: SamplerChain, *, method: str) -> ChainDrafter:
    """An EAGLE-3 or MTP drafter from a folder or hub name, for `target`. For MTP the folder may be the target's own.

    Raises ModelError for a checkpoint that is truncated, incomplete or another target's, UnsupportedModelError for
    what isn't computed.
    """
    check_target(target)
    checkpoint = Checkpoint.locate(model)
    text = target.model.config.get_text_config(decoder=True)
    build = _eagle3 if method == "eagle3" else _mtp
    module = build(checkpoint, target, int(text.num_hidden_layers), int(text.hidden_size))
    module = _for_target(module, target)
    size = module.layout.draft_vocab_size
    vocab = VocabMap.read(checkpoint, size, target.vocab_size) if size else None
    ends = TargetEnds(target, vocab, getattr(module, "lm_head", None), in_eight_bits=_in_eight_bits(target))
    tell(f"drafter {checkpoint.folder}: {module.layout.describe()}")
    return ChainDrafter(module, target, ends, Drawing(chain, argmax_by_default=False))


def _eagle3(checkpoint: Checkpoint, target: Any, num_layers: int, hidden_size: int) -> ChainModel:
    keys, layout = eagle3_layout(checkpoint, num_layers)
    where = str(checkpoint.folder)
    check_sizes(keys, layout.draft_vocab_size, target, where)
    check_same_target(checkpoint, target)
    qk_norm = any(name.endswith("q_norm.weight") for name in checkpoint.names)
    module = Eagle3Model(backbone_config(keys, qk_norm=qk_norm, where=where), layout, hidden_size)
    load_into(module, checkpoint, eagle3_names(layout))
    return module


def _mtp(checkpoint: Checkpoint, target: Any, num_layers: int, hidden_size: int) -> ChainModel:
    layout, rename = mtp_layout(checkpoint, num_layers)
    module = MTPModel(target.model, layout)
    fused = fused_experts(checkpoint, rename, module.state_dict())
    load_into(module, checkpoint, without_experts(rename, fused), given=fused)
    return module


def load_block_drafter(
    model: str,
    target: Any,
    chain: SamplerChain,
    *,
    method: str,
    confidence_threshold: float = 0.0,
) -> BlockDrafter:
    """A DFlash or DSpark drafter from a folder or hub name, for `target`.

    Raises ModelError for a checkpoint that is truncated, incomplete or another target's, UnsupportedModelError for
    what isn't computed, ParameterError for a method that the checkpoint isn't of.
    """
    check_target(target)
    checkpoint = Checkpoint.locate(model)
    where, text = str(checkpoint.folder), target.model.config.get_text_config(decoder=True)
    keys, layouts = block_layouts(checkpoint.config, checkpoint.names, int(text.num_hidden_layers), where)
    if layouts[0].method != method:
        raise ParameterError("method", method, f"{layouts[0].method!r} for the checkpoint {where}")
    check_sizes(keys, layouts[0].draft_vocab_size, target, where)
    check_same_target(checkpoint, target)
    qk_norm = any(name.endswith("q_norm.weight") for name in checkpoint.names)
    backbone = backbone_config(keys, qk_norm=qk_norm, where=where)

    def build(layout: BlockLayout) -> BlockDrafter:
        module = BlockModel(backbone, layout, int(text.hidden_size))
        if layout.mask_token_id >= len(target.model.get_input_embeddings().weight):
            raise ModelError(f"{where}: mask_token_id={layout.mask_token_id} is beyond the target's embedding")
        load_into(module, checkpoint, _rename(layout))
        module = module.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
        host = _host_block(module, target)
        module = _for_target(module, target)
        size = layout.draft_vocab_size
        vocab = VocabMap.read(checkpoint, size, target.vocab_size) if size else None
        ends = TargetEnds(target, vocab, module.lm_head, in_eight_bits=_in_eight_bits(target))
        looks_back = layout.markov_rank or layout.selector_rank or layout.domino_state_size
        drawing = Drawing(chain, argmax_by_default=not looks_back)
        made = BlockDrafter if looks_back else FactorisedDrafter
        return made(module, target, ends, drawing, confidence_threshold=confidence_threshold, host=host)

    drafter = settled(layouts, build, target, where)
    tell(f"drafter {where}: {drafter.layout.describe()}")
    return drafter


_Module = TypeVar("_Module", bound=nn.Module)


def _for_target(module: _Module, target: Any) -> _Module:
    """On the target's device, in its dtype; its products in 8 bits or packed where that pays."""
    module = module.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
    if _in_eight_bits(target):
        to_eight_bits(module)
    product = _product(target, module)
    if product is not None:
        pack_linears(module, product, (nn.Linear, Linear))
    return module


def _host_block(module: BlockModel, target: Any) -> HostBlock | None:
    """None where the layers are left to the modules, or run over fixed buffers."""
    if not is_lean(module):
        return None
    if _in_eight_bits(target):
        return HostBlock(module, EightBitLinear, torch.float32)
    product = _product(target, module)
    return None if product is None else HostBlock(module, product, target.dtype)


def _in_eight_bits(target: Any) -> bool:
    # A drafter that runs over fixed buffers has products of its own.
    is_rounded = target.dtype == torch.bfloat16 or getattr(target, "has_halves", False)
    return not getattr(target, "is_static", False) and takes_eight_bits(target.device, is_rounded=is_rounded)


def _product(target: Any, module: nn.Module) -> Product | None:
    if getattr(target, "is_static", False):
        return None
    halves = getattr(target, "has_halves", False) and too_large(module) is None
    return product_kind(target.dtype, target.device, invariant=False, halves=halves)


def check_target(target: Any) -> None:
    """Raises UnsupportedModelError for a target whose hidden states can't be read."""
    if not hasattr(target, "request_taps"):
        raise UnsupportedModelError(
            f"{type(target).__name__} keeps no hidden states, which learned drafters read; use a transformers model, "
            "or a drafter that reads none (ngram, suffix, draft_model)"
        )


def check_sizes(keys: Any, draft_vocab_size: int | None, target: TappedTarget, where: str) -> None:
    """The drafter's vocabulary and hidden size against the target's. Raises ModelError."""
    table: torch.Tensor = target.model.get_input_embeddings().weight
    vocab, hidden = int(keys.get("vocab_size", 0)), int(keys.get("hidden_size", 0))
    if vocab != target.vocab_size:
        raise ModelError(
            f"{where}: the drafter's vocabulary has {vocab} tokens, the target's {target.vocab_size}; {OTHER_TARGET}"
        )
    if hidden != table.shape[1]:
        raise ModelError(
            f"{where}: the drafter's hidden size is {hidden}, and the target's embedding, which it reads, has "
            f"{table.shape[1]}; {OTHER_TARGET}"
        )


def _rename(layout: BlockLayout) -> Callable[[str], str | None]:
    def rename(name: str) -> str | None:
        name = name.removeprefix("model.").removeprefix("logit_head.")
        if name in ("t2d", "d2t") or name.startswith(_NOT_THE_DRAFTERS) or name.endswith("inv_freq"):
            return None
        if name.startswith("lm_head."):
            return name if layout.has_own_head else None
        if name.endswith(("predecessor_codebook", "successor_codebook")):
            return name + ".weight"
        if name.startswith(("prefix_gru.", "embed_proj.")):
            return "domino." + name
        renamed = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
        return renamed.get(name, name)

    return rename
