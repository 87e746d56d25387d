"""What the recipes of dflash and dspark share: the module, its vocabulary, its blocks and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from draftproof.drafters.learned.backbone_config import BackboneConfig, backbone_config
from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.layout import BlockLayout
from draftproof.drafters.learned.packaging import default_taps
from draftproof.errors import ParameterError
from draftproof.train.blocks import Blocks, block_hidden, choose_blocks, gather_rows
from draftproof.train.corpus import Corpus
from draftproof.train.losses import Compared, choose_temperatures, chosen_weights, compare
from draftproof.train.recipes.vocab import vocabulary_tensors
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed


def mask_token(corpus: Corpus, target: FrozenTarget, init_from: str | None) -> int:
    """The highest id that the text never has, or that of the drafter in the folder `init_from`: what stands for a
    masked slot."""
    if init_from is not None:
        keys = Checkpoint.locate(init_from).config
        found = keys.get("mask_token_id", keys.get("dflash_config", {}).get("mask_token_id"))
        if found is not None:
            return int(found)
    counts = corpus.counts(target.vocab_size)
    unused = (counts == 0).nonzero()[0]
    return int(unused[-1]) if len(unused) else int(counts.argmin())


def layer_keys(target: FrozenTarget, num_layers: int) -> dict[str, Any]:
    """config.json's keys of a drafter whose layers have the target's own sizes, with Qwen3's norms."""
    config = target.config
    heads = int(config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None) or {}
    return {
        "model_type": "qwen3",
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": int(config.intermediate_size),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": int(getattr(config, "head_dim", None) or target.hidden_size // heads),
        "rms_norm_eps": float(getattr(config, "rms_norm_eps", 1e-6)),
        "rope_theta": float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
        "max_position_embeddings": int(config.max_position_embeddings),
        "attention_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * num_layers,
        "torch_dtype": "bfloat16",
    }


def chosen_taps(target: FrozenTarget, settings: TrainSettings) -> tuple[int, ...]:
    """The settings' taps, or as many as z-lab's rule gives for the drafter's layers, three at least."""
    if settings.tap_ids is None:
        # A target of few layers has fewer places to look at.
        spread = default_taps(target.num_layers, max(3, settings.num_layers))
        return tuple(sorted({tap + 1 for tap in spread if tap >= 0}))
    taps = settings.tap_ids
    if not taps or len(set(taps)) != len(taps) or not all(1 <= tap <= target.num_layers for tap in taps):
        raise ParameterError("tap_ids", taps, f"distinct, 1 to {target.num_layers}")
    return taps


@dataclass(slots=True)
class Predicted:
    """hidden [rows, A, n, hidden] of the predicting slots, logits [rows, A, n, D], target_logits [rows, A, n, V],
    token_ids [rows, A, n], previous_ids [rows, A, n], and the blocks."""

    hidden: torch.Tensor
    logits: torch.Tensor
    target_logits: torch.Tensor
    token_ids: torch.Tensor
    previous_ids: torch.Tensor
    blocks: Blocks


class BlockTraining:
    """The module and how a batch goes through it."""

    def __init__(self, target: FrozenTarget, layout: BlockLayout, keys: dict[str, Any], vocab: torch.Tensor | None):
        self.target, self.layout, self.vocab = target, layout, vocab
        backbone: BackboneConfig = backbone_config(keys, qk_norm=True, where="the recipe")
        self.module = BlockModel(backbone, layout, target.hidden_size).to(target.device)
        weight: torch.Tensor = target.head.weight  # type: ignore[assignment]
        self._head = weight if vocab is None else weight[vocab]

    def predict(self, batch: Packed, num_anchors: int, generator: torch.Generator) -> Predicted:
        """Logits of random blocks beside the target's at the same places."""
        layout, target = self.layout, self.target
        states = target.hidden_states(batch)
        taps = torch.cat([states[tap] for tap in layout.tap_ids], dim=-1)
        blocks = choose_blocks(batch, num_anchors, layout.block_size, layout.num_drafts, generator)
        hidden = block_hidden(self.module, target.embedding, batch, taps, blocks)[:, :, layout.first_slot :]
        before = blocks.columns - 1
        with torch.no_grad():
            target_logits = target.head(gather_rows(states[-1], before))
        logits = torch.nn.functional.linear(hidden.to(self._head.dtype), self._head)
        flat = (blocks.columns.flatten(1), before.flatten(1))
        token_ids, previous_ids = (batch.ids.gather(1, index).view_as(blocks.columns) for index in flat)
        return Predicted(hidden, logits, target_logits, token_ids, previous_ids, blocks)

    def compare(
        self,
        found: Predicted,
        logits: torch.Tensor,
        loss: str,
        settings: TrainSettings,
        generator: torch.Generator,
    ) -> tuple[Compared, torch.Tensor | None]:
        """`logits` [rows, A, n, D] against the target's by a loss's name, and the temperatures that both are at."""
        temperatures = choose_temperatures(settings.compare_at, found.token_ids, generator)
        compared = compare(
            logits,
            found.target_logits,
            found.token_ids,
            chosen_weights(loss, settings.hard_labels),
            self.vocab,
            temperatures=temperatures,
            fused=settings.compile,
        )
        return compared, temperatures

    def tensors(self, *, save_head: bool) -> dict[str, torch.Tensor]:
        """The module's tensors, and the maps of a reduced vocabulary as speculators writes them."""
        found = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        if self.vocab is not None and save_head:
            found["lm_head.weight"] = self._head.detach()
        return found | vocabulary_tensors(self.vocab, self.target.vocab_size)


def speculators_config(
    kind: str, layout: BlockLayout, keys: dict[str, Any], target: FrozenTarget, **fields: Any
) -> dict[str, Any]:
    """config.json in speculators' packaging, which has reduced vocabularies."""
    return {
        "architectures": ["DSparkSpeculator" if kind == "dspark" else "DFlashSpeculator"],
        "speculators_model_type": kind,
        "aux_hidden_state_layer_ids": list(layout.tap_ids),
        "block_size": layout.block_size,
        "mask_token_id": layout.mask_token_id,
        "sample_from_anchor": layout.anchor_first,
        "draft_vocab_size": layout.draft_vocab_size,
        "transformer_layer_config": keys,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": layout.num_drafts}],
            "verifier": {"name_or_path": target.name, "architectures": list(target.model.config.architectures or [])},
        },
        **fields,
    }
