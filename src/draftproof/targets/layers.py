"""What a model's layers cache, found by running one token through transformers' own cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from draftproof.errors import UnsupportedModelError
from draftproof.targets.cache import LayerShape


@dataclass(frozen=True, slots=True)
class Layers:
    """shapes: one per layer. windows: for each layer type its window, None for full attention, by the name under
    which models look a mask up. layer_windows: one per layer. groups: query heads per key head where that is one
    number, else 1."""

    shapes: tuple[LayerShape, ...]
    windows: dict[str, int | None]
    layer_windows: tuple[int | None, ...]
    groups: int


def _window(layer: Any) -> int | None:
    return int(layer.sliding_window) if type(layer) is DynamicSlidingWindowLayer else None


@torch.no_grad()
def inspect_layers(model: Any, cache_name: str) -> Layers:
    """Raises UnsupportedModelError where a layer caches anything but plain keys and values."""
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    model.base_model(input_ids=token, position_ids=token, use_cache=True, **{cache_name: cache})
    layers: list[Any] = cache.layers
    plain = (DynamicLayer, DynamicSlidingWindowLayer)
    wrong = sorted({type(layer).__name__ for layer in layers if type(layer) not in plain})
    if wrong:
        raise UnsupportedModelError(
            f"{type(model).__name__} has cache layers {', '.join(wrong)}; only layers that cache plain keys and values "
            "(full or sliding-window attention) can be rewound exactly"
        )
    if len(layers) != config.num_hidden_layers or any(layer.keys is None for layer in layers):
        raise UnsupportedModelError(
            f"{type(model).__name__} does not fill one cache layer per hidden layer ({config.num_hidden_layers}); "
            "models that share or skip cache layers can't be rewound exactly"
        )
    windows: dict[str, int | None] = {}
    for layer in layers:
        window = _window(layer)
        kind = "full_attention" if window is None else "sliding_attention"
        if windows.setdefault(kind, window) != window:
            raise UnsupportedModelError(
                f"{type(model).__name__} has sliding windows of several sizes; one size per model is supported"
            )
    shapes = tuple(
        LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3], layer.keys.dtype, layer.keys.device)
        for layer in layers
    )
    heads = {shape.heads for shape in shapes}
    groups = config.num_attention_heads // heads.pop() if len(heads) == 1 else 1
    return Layers(shapes, windows, tuple(_window(layer) for layer in layers), groups)
