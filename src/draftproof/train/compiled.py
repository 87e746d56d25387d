"""Layers through torch.compile, one after the other: the first is compiled, the others find its code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def compile_layers(layers: Iterable[nn.Module]) -> None:
    """Fused pointwise operations, for shapes that don't change. Hooks and names of the modules stay as they are."""
    for layer in layers:
        compiled: Any = torch.compile(layer.forward, dynamic=False)
        layer.forward = compiled
