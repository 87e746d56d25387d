"""A drafter's first weights: from a seed, the target's own layers, or another drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.modules import Linear, Table
from draftproof.errors import ModelError


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


@torch.no_grad()
def take_over(tensors: Mapping[str, torch.Tensor], folder: str) -> int:
    """Copy the drafter in `folder` into `tensors`, what a recipe's `tensors()` gives; how many names they share.

    Raises ModelError where a tensor has another shape, or where no name is the same.
    """
    checkpoint, count = Checkpoint.locate(folder), 0
    for name, ours in tensors.items():
        if name not in checkpoint:
            continue
        if (found := checkpoint.shape(name)) != tuple(ours.shape):
            raise ModelError(
                f"{folder}: the tensor {name} has shape {found}, and these settings ask for {tuple(ours.shape)}"
            )
        ours.copy_(checkpoint.tensor(name))
        count += 1
    if not count:
        raise ModelError(f"{folder} holds no tensor that this drafter has")
    return count
