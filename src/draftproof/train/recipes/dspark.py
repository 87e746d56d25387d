"""DSpark: anchor first, a Markov head on the text's own previous tokens, and a confidence head.

Loss of slot k = 0, 1, …: weight exp(-k / 4) times (0.1 · cross-entropy + 0.9 · |p - q|₁ + BCE(confidence, overlap)),
overlap = 1 - ½ |p - q|₁, the probability that the token is accepted if it is reached.
Source: DeepSpec (MIT), config and loss of the released heads; AdamW 6e-4, warm-up 4 %, no decay, clipping at 1.0.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.layout import BlockLayout
from draftproof.errors import ParameterError
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

_DECAY = 4.0
# Temperatures that a slot's confidence may be divided by: 0.5 to 3, in steps of 2 %.
_TEMPERATURES = tuple(0.5 * 1.02**step for step in range(91))


class DSparkRecipe(Recipe):
    method: ClassVar[str] = "dspark"
    module: BlockModel

    def __init__(self, target: FrozenTarget, corpus: Corpus, settings: TrainSettings, generator: torch.Generator):
        self.settings, self.target = settings, target
        vocab = draft_vocabulary(corpus, target, settings.draft_vocab_size, settings.init_from)
        self.keys = layer_keys(target, settings.num_layers)
        self.layout = BlockLayout(
            method=self.method,
            packaging="DeepSpec",
            tap_ids=chosen_taps(target, settings),
            tap_convention="output of layer id, -1 the embedding",
            draft_vocab_size=None if vocab is None else len(vocab),
            block_size=settings.block_size,
            anchor_first=True,
            mask_token_id=mask_token(corpus, target, settings.init_from),
            causal=(False,) * settings.num_layers,
            markov_rank=settings.markov_rank,
            markov_type=settings.markov_type,
            has_confidence=True,
            confidence_with_markov=True,
        )
        self.training = BlockTraining(target, self.layout, self.keys, vocab)
        self.module = self.training.module
        random_weights(self.module, generator)
        self._held_out: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._temperatures: tuple[float, ...] = ()

    def loss(self, batch: Packed, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        found = self.training.predict(batch, self.settings.num_anchors, generator)
        markov, confidence = self.module.markov_head, self.module.confidence_head
        if markov is None or confidence is None:
            raise ParameterError("method", self.method, "a module with both heads")
        logits = found.logits + markov.block_bias(found.previous_ids, found.hidden)
        compared, temperatures = self.training.compare(found, logits, "distance", self.settings, generator)
        features = torch.cat((found.hidden, markov.embed(found.previous_ids)), dim=-1)
        certainty = confidence(features).float()
        surprise = binary_cross_entropy_with_logits(certainty, compared.overlap, reduction="none")
        # The head tells the overlap at temperature 1.
        losses = compared.loss + (surprise if temperatures is None else surprise * (temperatures == 1.0))
        valid = found.blocks.valid
        if not torch.is_grad_enabled():
            self._held_out.append((certainty, compared.overlap, valid))
        share = slot_weights(valid.shape[-1], _DECAY, logits) * valid
        error = ((torch.sigmoid(certainty.detach()) - compared.overlap).abs() * valid).sum() / valid.sum().clamp(min=1)
        return (losses * share).sum() / share.sum().clamp(min=1e-6), {
            "acceptance_length": accepted_lengths(compared.overlap, valid),
            "greedy_length": accepted_lengths(compared.agrees, valid),
            "confidence_error": error,
        }

    def calibrate(self) -> None:
        """One temperature for each slot, the first first (DSpark's sequential scaling): the one under which held-out
        overlaps are most probable."""
        parts = [torch.cat([batch[index].flatten(0, 1) for batch in self._held_out]) for index in range(3)]
        self._held_out = []
        certainty, overlap, valid = parts
        self._temperatures = tuple(
            best_temperature(certainty[valid[:, slot], slot], overlap[valid[:, slot], slot])
            for slot in range(valid.shape[-1])
        )

    def compile(self) -> None:
        compile_layers(self.module.layers)

    def config(self) -> dict[str, Any]:
        heads = {
            "markov_rank": self.layout.markov_rank,
            "markov_head_type": self.layout.markov_type,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "confidence_temperatures": list(self._temperatures),
        }
        if self.layout.draft_vocab_size is not None:
            return speculators_config("dspark", self.layout, self.keys, self.target, **heads)
        return self.keys | heads | {
            "architectures": ["Qwen3DSparkModel"],
            "block_size": self.layout.block_size,
            "mask_token_id": self.layout.mask_token_id,
            "target_layer_ids": [tap - 1 for tap in self.layout.tap_ids],
            "num_anchors": self.settings.num_anchors,
        }  # fmt: skip

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.training.tensors(save_head=self.settings.save_head)


def best_temperature(certainty: torch.Tensor, overlap: torch.Tensor) -> float:
    """The temperature t of `_TEMPERATURES` with the least BCE(certainty / t, overlap); [n] each, 1.0 for n = 0."""
    if not len(certainty):
        return 1.0
    losses = [float(binary_cross_entropy_with_logits(certainty / t, overlap)) for t in _TEMPERATURES]
    return round(_TEMPERATURES[losses.index(min(losses))], 4)
