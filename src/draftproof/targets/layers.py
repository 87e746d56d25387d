"""What a model's layers keep of a sequence, found by running one token through transformers' own cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

from draftproof.errors import UnsupportedModelError
from draftproof.targets.cache import LayerShape
from draftproof.targets.recurrent.states import StateShape
from draftproof.targets.support import num_shards

# By name: not every supported release of transformers has all of them.
KINDS = (
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
    "DummyLayer",
)


@dataclass(frozen=True, slots=True)
class Layers:
    """shapes: one per layer. windows: for each layer type its window, None for full attention, by the name under
    which models look a mask up. layer_windows: one per layer. groups: query heads per key head where that is one
    number, else 1. recurrent: by layer, of those that have a recurrent state."""

    shapes: tuple[LayerShape, ...]
    windows: dict[str, int | None]
    layer_windows: tuple[int | None, ...]
    groups: int
    recurrent: dict[int, StateShape]


def _window(layer: Any) -> int | None:
    return int(layer.sliding_window) if isinstance(layer, DynamicSlidingWindowLayer) else None


def _has_keys(layer: Any) -> bool:
    return isinstance(getattr(layer, "keys", None), torch.Tensor)


def _state_of(layer: Any, model: Any) -> StateShape | None:
    if not getattr(layer, "conv_states", None):
        return None
    if len(layer.conv_states) != 1 or layer.conv_states[0] is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has layers with {len(layer.conv_states)} recurrent states, or with one that isn't "
            "filled; one for each layer, behind a convolution, can be rewound exactly"
        )
    inputs, state = layer.conv_states[0], layer.recurrent_states[0]
    wide = torch.promote_types(inputs.dtype, torch.float32)
    shape = None if state is None else tuple(state.shape[1:])
    return StateShape(inputs.shape[1], int(layer.conv_kernel_size[0]) - 1, shape, inputs.dtype, wide, inputs.device)


@torch.no_grad()
def inspect_layers(model: Any, cache_name: str) -> Layers:
    """Raises UnsupportedModelError where a layer keeps anything but plain keys and values, or a recurrent state."""
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    try:
        model.base_model(input_ids=token, position_ids=token, use_cache=True, **{cache_name: cache})
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever the model's code raises when it is given a cache that it doesn't know
        raise UnsupportedModelError(
            f"{type(model).__name__} doesn't run with transformers' cache ({type(error).__name__}: {error}), so what "
            "it keeps of a sequence can't be rewound exactly"
        ) from error
    layers: list[Any] = cache.layers
    known = {getattr(cache_utils, name) for name in KINDS if hasattr(cache_utils, name)}
    wrong = sorted({type(layer).__name__ for layer in layers if type(layer) not in known})
    if wrong:
        raise UnsupportedModelError(
            f"{type(model).__name__} has cache layers {', '.join(wrong)}; only layers that keep plain keys and values "
            "(full or sliding-window attention) or a recurrent state can be rewound exactly"
        )
    states = [_state_of(layer, model) for layer in layers]
    recurrent = {index: state for index, state in enumerate(states) if state is not None}
    filled = [index in recurrent or _has_keys(layer) for index, layer in enumerate(layers)]
    if len(layers) != config.num_hidden_layers or not (all(filled) or recurrent):
        raise UnsupportedModelError(
            f"{type(model).__name__} does not fill one cache layer per hidden layer ({config.num_hidden_layers}); "
            "models that share or skip cache layers can't be rewound exactly"
        )
    windows: dict[str, int | None] = {}
    for layer in filter(_has_keys, layers):
        window = _window(layer)
        kind = "full_attention" if window is None else "sliding_attention"
        if windows.setdefault(kind, window) != window:
            raise UnsupportedModelError(
                f"{type(model).__name__} has sliding windows of several sizes; one size per model is supported"
            )
    shapes = tuple(_shape_of(layer, model) for layer in layers)
    heads = {shape.heads for shape in shapes if shape.heads}
    groups = config.num_attention_heads // (heads.pop() * num_shards(model)) if len(heads) == 1 else 1
    return Layers(shapes, windows, tuple(_window(layer) for layer in layers), groups, recurrent)


def _shape_of(layer: Any, model: Any) -> LayerShape:
    if not _has_keys(layer):
        return LayerShape(0, 0, 0, model.dtype, model.device)
    keys, values = layer.keys, layer.values
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, keys.device)
