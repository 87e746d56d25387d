"""A draft model from some layers of the target, with no weights of its own: for tests and benchmarks.

Untrained, it guesses badly. What it is good for: another model with the target's tokenizer, for nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from draftproof.errors import ParameterError, UnsupportedModelError


def layers_of(target_model: Any, layers: Sequence[int] = (0, 14, 29)) -> Any:
    """A model of the same class with the chosen layers of `target_model`, embeddings, norm and head.

    target_model: a transformers causal LM whose layers stand in `model.layers` (llama, qwen, mistral, …).
    layers: indices of its layers, counted from 0, in the order in which they are to run.
    The new model shares every tensor with the target: it takes no memory, and changes with it.

    Raises ParameterError for an index that the target doesn't have, UnsupportedModelError for another layout.
    """
    stack = getattr(getattr(target_model, "model", None), "layers", None)
    if stack is None:
        raise UnsupportedModelError(
            f"{type(target_model).__name__} has no model.layers; take layers from a model that is built like Llama"
        )
    wrong = [index for index in layers if not 0 <= index < len(stack)]
    if wrong or not layers:
        raise ParameterError("layers", list(layers), f"one or more of the target's layers, 0 to {len(stack) - 1}")
    config = copy.deepcopy(target_model.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [target_model.config.layer_types[index] for index in layers]
    pruned = _sharing_copy(target_model)
    pruned.model.layers = nn.ModuleList(_sharing_copy(stack[index]) for index in layers)
    for new_index, layer in enumerate(pruned.model.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = new_index
    for module in pruned.modules():
        if getattr(module, "config", None) is target_model.config:
            module.config = config
    return pruned.eval()


def _sharing_copy(module: nn.Module) -> Any:
    """The module and its submodules as new objects over the same tensors, whatever kind of layers they are."""
    copied: Any = copy.copy(module)
    copied._parameters, copied._buffers = dict(module._parameters), dict(module._buffers)
    copied._modules = {name: None if child is None else _sharing_copy(child) for name, child in module._modules.items()}
    return copied
