"""DFlash, version 1: the block predicts its own positions' tokens, slot 0 is the anchor and predicts nothing.

Loss of slot k = 1, 2, …: weight exp(-(k - 1) / 4) (7 for blocks of 16) times the cross-entropy. The published recipe
takes the text's token as the label (`hard_labels`); the target's whole law at that place has the same expectation and
less noise, and is what is taken by default. Anchors at random; embedding and output layer are the target's, frozen.
Source: reproductions of z-lab's recipe (SpecForge, DeepSpec): AdamW 6e-4, warm-up 4 %, clipping at 1.0.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.layout import BlockLayout
from draftproof.train.blocks import slot_weights
from draftproof.train.compiled import compile_layers
from draftproof.train.corpus import Corpus
from draftproof.train.initial import random_weights
from draftproof.train.losses import accepted_lengths
from draftproof.train.recipes.base import Recipe
from draftproof.train.recipes.blocks import (
    BlockTraining,
    chosen_taps,
    layer_keys,
    mask_token,
    speculators_config,
)
from draftproof.train.recipes.vocab import draft_vocabulary
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed


class DFlashRecipe(Recipe):
    method: ClassVar[str] = "dflash"
    module: BlockModel

    def __init__(self, target: FrozenTarget, corpus: Corpus, settings: TrainSettings, generator: torch.Generator):
        self.settings, self.target = settings, target
        vocab = draft_vocabulary(corpus, target, settings.draft_vocab_size, settings.init_from)
        self.keys = layer_keys(target, settings.num_layers)
        self.layout = BlockLayout(
            method=self.method,
            packaging="z-lab",
            tap_ids=chosen_taps(target, settings),
            tap_convention="output of layer id",
            draft_vocab_size=None if vocab is None else len(vocab),
            block_size=settings.block_size,
            anchor_first=False,
            mask_token_id=mask_token(corpus, target, settings.init_from),
            causal=(False,) * settings.num_layers,
        )
        self.training = BlockTraining(target, self.layout, self.keys, vocab)
        self.module = self.training.module
        random_weights(self.module, generator)

    def loss(self, batch: Packed, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found = self.training.predict(batch, self.settings.num_anchors, generator)
        compared, _ = self.training.compare(found, found.logits, self.settings.loss, self.settings, generator)
        decay = 7.0 if self.settings.block_size > 8 else 4.0
        valid = found.blocks.valid
        share = slot_weights(valid.shape[-1], decay, found.logits) * valid
        loss = (compared.loss * share).sum() / share.sum().clamp(min=1e-6)
        return loss, {
            "acceptance_length": accepted_lengths(compared.overlap, valid),
            "greedy_length": accepted_lengths(compared.agrees, valid),
        }

    def compile(self) -> None:
        compile_layers(self.module.layers)

    def config(self) -> dict[str, Any]:
        if self.layout.draft_vocab_size is not None:
            return speculators_config("dflash", self.layout, self.keys, self.target)
        return self.keys | {
            "architectures": ["DFlashDraftModel"],
            "block_size": self.layout.block_size,
            "num_target_layers": self.target.num_layers,
            "dflash_config": {
                "mask_token_id": self.layout.mask_token_id,
                "target_layer_ids": [tap - 1 for tap in self.layout.tap_ids],
            },
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.training.tensors(save_head=self.settings.save_head)
