"""Whose files are these, and what do their numbers mean? One function per packaging of DFlash and DSpark.

| packaging | recognised by | slots | tap ids in the file |
|---|---|---|---|
| speculators | `speculators_config`, `speculators_model_type` or `transformer_layer_config` | `sample_from_anchor`, else `block_size - speculative_tokens` | input of layer k |
| SpecForge | `dflash_config.projector_type` dspark or domino | dspark: anchor first; domino: `shift_label` | output of layer k |
| transformers | `model_type` muse_glimmer_assistant | anchor dropped | output of layer k |
| z-lab | `dflash_config`, or the architectures DFlashDraftModel and DFlash2DraftModel | anchor dropped | output of layer k |
| DeepSpec | flat keys with `num_anchors` or `markov_rank`, or the architecture Qwen3DSparkModel | anchor first | output of layer k, -1 the embedding |
| unknown | flat keys alone | probed | probed |

Each gives one layout, or several where the file leaves the choice open (then `probe.py` decides).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftproof.drafters.learned.backbone_config import SLIDING
from draftproof.drafters.learned.layout import OTHER_TARGET, BlockLayout
from draftproof.drafters.learned.markov import HEAD_TYPES
from draftproof.errors import ModelError

_OUTPUT, _INPUT = "output of layer id", "input of layer id"


def block_layouts(
    config: Mapping[str, Any], names: tuple[str, ...], num_target_layers: int, where: str
) -> tuple[Mapping[str, Any], list[BlockLayout]]:
    """(the keys that describe the layers, the possible layouts, likeliest first).

    names: of the checkpoint's tensors. Raises ModelError for a missing key or a tap that the target doesn't have.
    """
    inner = config.get("dflash_config") or {}
    architectures = " ".join(config.get("architectures") or [])
    if "transformer_layer_config" in config or "speculators_model_type" in config or "speculators_config" in config:
        backbone, layouts = dict(config["transformer_layer_config"]), _speculators(config, names, where)
    elif inner.get("projector_type") in ("dspark", "domino"):
        backbone, layouts = dict(config), [_specforge(config, inner, num_target_layers, where)]
    elif inner or "DFlash" in architectures or config.get("model_type") == "muse_glimmer_assistant":
        backbone, layouts = dict(config), [_zlab(config, inner, num_target_layers, where)]
    elif "num_anchors" in config or "markov_rank" in config or "DSpark" in architectures:
        backbone, layouts = dict(config), [_deepspec(config, num_target_layers, where)]
    else:
        backbone, layouts = dict(config), _unknown(config, num_target_layers, where)
    possible = [layout for layout in layouts if max(layout.tap_ids) <= num_target_layers and min(layout.tap_ids) >= 0]
    if not possible:
        raise ModelError(
            f"{where}: the drafter reads the target's hidden states {list(layouts[0].tap_ids)}, and this target has "
            f"{num_target_layers} layers; {OTHER_TARGET}"
        )
    return backbone, possible


def default_taps(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """The layers that z-lab and SpecForge read where a configuration names none."""
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    span = num_target_layers - 4
    return [round(1 + index * span / (num_draft_layers - 1)) for index in range(num_draft_layers)]


def _common(config: Mapping[str, Any], where: str, **found: Any) -> dict[str, Any]:
    """Fields that all packagings keep under the same keys, at the top or in `dflash_config`."""
    inner = config.get("dflash_config") or {}

    def value(key: str, default: Any = None) -> Any:
        return inner.get(key, config.get(key, default))

    backbone = config.get("transformer_layer_config") or config
    block_size, mask_id = value("block_size"), value("mask_token_id")
    if not isinstance(block_size, int) or block_size < 2:
        raise ModelError(f"{where}: block_size={block_size!r} in the drafter's config.json; an integer of 2 or more")
    if not isinstance(mask_id, int) or not 0 <= mask_id < int(backbone.get("vocab_size", 1 << 31)):
        raise ModelError(f"{where}: mask_token_id={mask_id!r} in the drafter's config.json; it must be a token id")
    cap = value("final_logit_softcapping")
    markov = int(value("markov_rank", 0) or 0)
    alpha = float(value("confidence_head_alpha", 0.0) or 0.0)
    confident = bool(value("enable_confidence_head", alpha > 0.0))
    return {
        "block_size": block_size,
        "mask_token_id": mask_id,
        "output_multiplier": float(value("output_multiplier", 1.0) or 1.0),
        "logit_softcap": float(cap) if cap and float(cap) > 0 else None,
        "embedding_scale": float(value("input_embedding_scale", 1.0) or 1.0),
        "markov_rank": markov,
        "markov_type": _markov_type(value("markov_head_type", "vanilla"), where) if markov else "",
        "has_confidence": confident,
        "confidence_with_markov": bool(value("confidence_head_with_markov", False)) and confident,
        "confidence_temperatures": tuple(value("confidence_temperatures", ()) or ()),
        "conv_kernel_size": int(value("conv_kernel_size", 0) or 0),
        "conv_group_size": int(value("conv_group_size", 0) or 0),
        "selector_rank": int(value("selector_rank", 0) or 0),
        "selector_top_k": int(value("selector_top_k", 0) or 0),
        "method": "dspark" if markov or confident else "dflash",
    } | found


def _markov_type(given: Any, where: str) -> str:
    kind = str(given).lower()
    if kind not in HEAD_TYPES:
        raise ModelError(f"{where}: markov_head_type={given!r} in the drafter's config.json; one of {HEAD_TYPES}")
    return kind


def _causal(config: Mapping[str, Any], *, sliding: bool = True) -> tuple[bool, ...]:
    """For each layer: what `is_causal` says, else that of sliding layers."""
    backbone = config.get("transformer_layer_config") or config
    count = int(backbone.get("num_hidden_layers") or 1)
    kinds = list(backbone.get("layer_types") or [""] * count)
    forced = config.get("is_causal", config.get("dflash_query_causal"))
    return tuple(kind == SLIDING and sliding if forced is None else bool(forced) for kind in kinds)


def _taps(config: Mapping[str, Any], num_target_layers: int, where: str, shift: int = 1) -> tuple[int, ...]:
    inner = config.get("dflash_config") or {}
    ids = inner.get("target_layer_ids", config.get("target_layer_ids"))
    if ids is None:
        ids = default_taps(num_target_layers, int(config.get("num_hidden_layers") or 1))
    if not ids or not all(isinstance(tap, int) for tap in ids):
        raise ModelError(f"{where}: target_layer_ids={ids!r} in the drafter's config.json; they are layer numbers")
    return tuple(tap + shift for tap in ids)


def _zlab(config: Mapping[str, Any], inner: Mapping[str, Any], num_target_layers: int, where: str) -> BlockLayout:
    transformers = config.get("model_type") == "muse_glimmer_assistant"
    return BlockLayout(
        **_common(config, where),
        packaging="transformers" if transformers else "z-lab",
        anchor_first=False,
        tap_ids=_taps(config, num_target_layers, where),
        tap_convention=_OUTPUT,
        causal=_causal(config, sliding=not transformers),
    )


def _deepspec(config: Mapping[str, Any], num_target_layers: int, where: str) -> BlockLayout:
    return BlockLayout(
        **_common(config, where),
        packaging="DeepSpec",
        anchor_first=True,
        tap_ids=_taps(config, num_target_layers, where),
        tap_convention=_OUTPUT + ", -1 the embedding",
        causal=_causal(config),
    )


def _specforge(config: Mapping[str, Any], inner: Mapping[str, Any], num_target_layers: int, where: str) -> BlockLayout:
    domino = inner["projector_type"] == "domino"
    found: dict[str, Any] = {}
    if domino:
        found = {
            "domino_state_size": int(inner["gru_hidden_dim"]),
            "domino_rank": int(inner["emb_dim"]),
            "domino_prefix": int(inner.get("pure_draft_prefix_len") or 0),
            "method": "dflash",
        }
    return BlockLayout(
        **_common(config, where, **found),
        packaging=f"SpecForge {inner['projector_type']}",
        anchor_first=bool(inner.get("shift_label", False)) if domino else True,
        tap_ids=_taps(config, num_target_layers, where),
        tap_convention=_OUTPUT,
        causal=_causal(config),
    )


def _speculators(config: Mapping[str, Any], names: tuple[str, ...], where: str) -> list[BlockLayout]:
    backbone = config["transformer_layer_config"]
    ids = config.get("aux_hidden_state_layer_ids")
    if not ids:
        raise ModelError(f"{where}: aux_hidden_state_layer_ids is not in the drafter's config.json; it names its taps")
    kind = str(config.get("speculators_model_type", "dflash"))
    draft_size = int(config.get("draft_vocab_size") or backbone["vocab_size"])
    reduced = draft_size != backbone["vocab_size"]
    common = _common(
        config,
        where,
        method="dspark" if kind == "dspark" else "dflash",
        draft_vocab_size=draft_size if reduced else None,
        has_own_head=reduced and "lm_head.weight" in names,
    )
    layouts = []
    for anchor_first in _anchor_first(config, kind, common["block_size"], where):
        layouts.append(
            BlockLayout(
                **common,
                packaging="speculators",
                anchor_first=anchor_first,
                tap_ids=tuple(ids),
                tap_convention=_INPUT,
                causal=_causal(config, sliding=not config.get("sliding_window_non_causal", kind == "dflash2")),
            )
        )
    return layouts


def _anchor_first(config: Mapping[str, Any], kind: str, block_size: int, where: str) -> list[bool]:
    stated = config.get("sample_from_anchor")
    if stated is not None:
        return [bool(stated)]
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
    num_tokens = methods[0].get("speculative_tokens")
    if num_tokens is not None and block_size - num_tokens in (0, 1):
        return [block_size == num_tokens]
    # Newer classes of dspark have the anchor first when they don't say; older ones drop it.
    return [True, False] if kind == "dspark" else [False]


def _unknown(config: Mapping[str, Any], num_target_layers: int, where: str) -> list[BlockLayout]:
    return [
        BlockLayout(
            **_common(config, where),
            packaging="unknown",
            anchor_first=anchor_first,
            tap_ids=_taps(config, num_target_layers, where, shift),
            tap_convention=convention,
            causal=_causal(config),
        )
        for shift, convention in ((1, _OUTPUT), (0, _INPUT))
        for anchor_first in (False, True)
    ]
