"""MTP: one more layer of the target's own kind, trained several steps ahead on its recycled hidden state.

Loss of step s = 0, 1, …: 0.6^s times the cross-entropy (with the target's law, or with the text's token under
`hard_labels`). The layer begins as a copy of the target's last one, and the projection as a look at the hidden state
alone; embedding and output layer are the target's.
Source: DeepSeek-V3 2412.19437 section 2.2; FastMTP 2509.18362 (step weights 0.6^s). DeepSeek-V3's names and packaging.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from draftproof.drafters.learned.layout import ChainLayout
from draftproof.drafters.learned.mtp import MTPModel
from draftproof.errors import ParameterError
from draftproof.train.corpus import Corpus
from draftproof.train.initial import copy_layer, random_weights
from draftproof.train.recipes.base import Recipe
from draftproof.train.recipes.chains import chain_loss
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed

_DECAY = 0.6


class MTPRecipe(Recipe):
    method: ClassVar[str] = "mtp"
    module: MTPModel

    def __init__(self, target: FrozenTarget, corpus: Corpus, settings: TrainSettings, generator: torch.Generator):
        if settings.draft_vocab_size is not None:
            raise ParameterError(
                "draft_vocab_size", settings.draft_vocab_size, "left out for mtp, whose packaging has the target's"
            )
        if settings.tap_ids not in (None, (target.num_layers,)):
            raise ParameterError("tap_ids", settings.tap_ids, "left out for mtp, which reads what the final norm gives")
        self.settings, self.target = settings, target
        layout = ChainLayout(
            method=self.method,
            packaging="DeepSeek-V3/GLM",
            tap_ids=(target.num_layers,),
            tap_convention="after the final norm",
            concat="[embedding, hidden]",
        )
        self.module = MTPModel(target.model, layout).float().to(target.device)
        random_weights(self.module, generator)
        decoder: Any = target.model.get_decoder()
        with torch.no_grad():
            copy_layer(self.module.block, decoder.layers[-1])
            for norm in (self.module.enorm, self.module.hnorm, self.module.norm):
                norm.weight.copy_(decoder.norm.weight)
            self.module.hnorm.weight.copy_(torch.ones_like(self.module.hnorm.weight))
            self.module.enorm.weight.copy_(torch.ones_like(self.module.enorm.weight))
            hidden = target.hidden_size
            self.module.eh_proj.weight[:, hidden:] += torch.eye(hidden, device=target.device)

    def loss(self, batch: Packed, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        head: torch.Tensor = self.target.head.weight  # type: ignore[assignment]
        return chain_loss(self.module, self.target, head, None, self.settings, _DECAY, batch, generator)

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.target.model.config.to_dict()
        return config | {"num_nextn_predict_layers": 1, "_name_or_path": self.target.name}

    def tensors(self) -> dict[str, torch.Tensor]:
        prefix = f"model.layers.{self.target.num_layers}."
        found = {}
        for name, tensor in self.module.state_dict().items():
            name = f"shared_head.{name}" if name.startswith("norm.") else name.removeprefix("block.")
            found[prefix + name] = tensor.detach()
        return found
