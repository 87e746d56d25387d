"""What the loop asks of a recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

from draftproof.train.corpus import Corpus
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed


class Recipe(ABC):
    """`module` holds the weights that are trained, in float32."""

    method: ClassVar[str]
    module: nn.Module

    @abstractmethod
    def __init__(self, target: FrozenTarget, corpus: Corpus, settings: TrainSettings, generator: torch.Generator):
        """Build the module with its first weights. Raises ParameterError for settings that don't fit the target."""

    @abstractmethod
    def loss(self, batch: Packed, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss of a batch, and figures for the log.

        `acceptance_length`: tokens a pass, bonus counted, by overlap of the laws; `greedy_length`: by equal argmax;
        both along the text's own tokens.
        """

    def calibrate(self) -> None:  # noqa: B027  (most recipes have nothing to fit)
        """After the held-out batches have gone through `loss` without gradients: fit what is fitted to them."""

    def compile(self) -> None:  # noqa: B027  (a chain's layers see another shape in each step)
        """Put what is worth it through torch.compile."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The config.json of the drafter's folder."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """The folder's tensors, by the packaging's names."""
