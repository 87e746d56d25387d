"""A drafter's first weights: from a seed, or copied from the target's own layers where the shapes allow it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof.drafters.learned.modules import Linear, Table


@torch.no_grad()
def random_weights(module: nn.Module, generator: torch.Generator, std: float = 0.02) -> None:
    """Every Linear and Table from N(0, std²); norms stay at 1, biases at 0."""
    for part in module.modules():
        if isinstance(part, (Linear, Table)):
            part.weight.normal_(0.0, std, generator=generator)


@torch.no_grad()
def copy_layer(layer: nn.Module, target_layer: Any) -> int:
    """Take over every tensor that has the same name and shape in a layer of the target; how many there were."""
    theirs = dict(target_layer.named_parameters())
    count = 0
    for name, ours in layer.named_parameters():
        if name in theirs and theirs[name].shape == ours.shape:
            ours.copy_(theirs[name])
            count += 1
    return count
