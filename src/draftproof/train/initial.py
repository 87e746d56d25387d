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


def reduced_vocabulary(checkpoint: Checkpoint) -> torch.Tensor | None:
    """[D] ascending ids of the tokens that a drafter can draft, or None for all of them."""
    if "d2t" not in checkpoint:
        return None
    offsets = checkpoint.tensor("d2t").cpu()
    return offsets + torch.arange(len(offsets))


@torch.no_grad()
def take_over(tensors: Mapping[str, torch.Tensor], folder: str) -> int:
    """Copy the drafter in `folder` into `tensors`, what a recipe's `tensors()` gives; how many names they share.

    A tensor with a row for each drafted token may have more rows than there: those of added tokens stay as they are.
    Layers that the other drafter lacks begin by adding nothing.
    Raises ModelError where a tensor has another shape, or where no name is the same.
    """
    checkpoint, count = Checkpoint.locate(folder), 0
    rows = _kept_rows(checkpoint, tensors.get("d2t"))
    for name, ours in tensors.items():
        if name not in checkpoint:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                ours.zero_()
            continue
        count += 1
        found = checkpoint.shape(name)
        if name in ("d2t", "t2d"):
            continue
        if rows is not None and found == (len(rows), *ours.shape[1:]):
            ours[rows.to(ours.device)] = checkpoint.tensor(name).to(ours.device, ours.dtype)
        elif found == tuple(ours.shape):
            ours.copy_(checkpoint.tensor(name))
        else:
            raise ModelError(
                f"{folder}: the tensor {name} has shape {found}, and these settings ask for {tuple(ours.shape)}"
            )
    if not count:
        raise ModelError(f"{folder} holds no tensor that this drafter has")
    return count


def _kept_rows(checkpoint: Checkpoint, offsets: torch.Tensor | None) -> torch.Tensor | None:
    """Where the checkpoint's drafted tokens stand among ours, if we have more of them."""
    theirs = reduced_vocabulary(checkpoint)
    if theirs is None or offsets is None or len(theirs) >= len(offsets):
        return None
    ours = offsets.cpu() + torch.arange(len(offsets))
    return torch.searchsorted(ours, theirs)
