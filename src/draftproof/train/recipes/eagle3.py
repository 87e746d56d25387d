"""EAGLE-3: one layer over three taps, trained several steps ahead on its own hidden states.

Loss of step s = 0, 1, …: 0.8^s times the cross-entropy with the target's law over the drafter's vocabulary.
With `save_head` the output layer is the drafter's own, begins as the target's rows and is trained; without, it is the
target's. The layer begins with what fits of the target's last one; fc as a look at the highest tap alone.
Source: EAGLE-3 2503.01840; SpecForge (7 steps, decay 0.8). Written in SpecForge's packaging.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from draftproof.drafters.learned.backbone_config import backbone_config
from draftproof.drafters.learned.eagle3 import Eagle3Model
from draftproof.drafters.learned.layout import ChainLayout
from draftproof.errors import ParameterError
from draftproof.train.corpus import Corpus
from draftproof.train.initial import copy_layer, random_weights
from draftproof.train.recipes.base import Recipe
from draftproof.train.recipes.blocks import layer_keys
from draftproof.train.recipes.chains import chain_loss
from draftproof.train.recipes.vocab import draft_vocabulary, vocabulary_tensors
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed

_DECAY = 0.8


class Eagle3Recipe(Recipe):
    method: ClassVar[str] = "eagle3"
    module: Eagle3Model

    def __init__(self, target: FrozenTarget, corpus: Corpus, settings: TrainSettings, generator: torch.Generator):
        self.settings, self.target = settings, target
        self.vocab = draft_vocabulary(corpus, target, settings.draft_vocab_size, settings.init_from)
        self.keys = layer_keys(target, 1)
        spread = {2, target.num_layers // 2, target.num_layers - 3}
        taps = settings.tap_ids or tuple(sorted(tap for tap in spread if tap >= 1))
        if len(set(taps)) != len(taps) or not all(1 <= tap <= target.num_layers for tap in taps):
            raise ParameterError("tap_ids", taps, f"distinct, 1 to {target.num_layers}")
        self.layout = ChainLayout(
            method=self.method,
            packaging="EAGLE/SpecForge",
            tap_ids=taps,
            tap_convention="output of layer id",
            draft_vocab_size=None if self.vocab is None else len(self.vocab),
            has_own_head=settings.save_head,
        )
        backbone = backbone_config(self.keys, qk_norm=False, where="the recipe")
        self.module = Eagle3Model(backbone, self.layout, target.hidden_size).to(target.device)
        weight: torch.Tensor = target.head.weight  # type: ignore[assignment]
        self._rows = weight if self.vocab is None else weight[self.vocab]
        random_weights(self.module, generator)
        self._begin_at_target()

    @torch.no_grad()
    def _begin_at_target(self) -> None:
        decoder: Any = self.target.model.get_decoder()
        copy_layer(self.module.layers[0], decoder.layers[-1])
        self.module.norm.weight.copy_(decoder.norm.weight)
        hidden = self.target.hidden_size
        self.module.fc.weight[:, -hidden:] += torch.eye(hidden, device=self.target.device)
        if self.module.lm_head is not None:
            self.module.lm_head.weight.copy_(self._rows)

    def loss(self, batch: Packed, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        own = self.module.lm_head
        head = self._rows if own is None else own.weight
        return chain_loss(self.module, self.target, head, self.vocab, self.settings, _DECAY, batch, generator)

    def config(self) -> dict[str, Any]:
        return self.keys | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "draft_vocab_size": self.layout.draft_vocab_size or self.target.vocab_size,
            "target_hidden_size": self.target.hidden_size,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in self.layout.tap_ids],
                "use_aux_hidden_state": True,
            },
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {
            name.replace("layers.0.", "midlayer.", 1): tensor.detach()
            for name, tensor in self.module.state_dict().items()
        }
        return found | vocabulary_tensors(self.vocab, self.target.vocab_size)
