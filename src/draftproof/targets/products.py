"""Which linear layers a CPU's narrow forwards run, and the model's own replaced by them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import nn

from draftproof.targets.cpu_linear import PackedLinear, should_pack
from draftproof.targets.half_linear import HalfLinear
from draftproof.targets.native import compiled
from draftproof.targets.streamed_linear import StreamedLinear

Made = TypeVar("Made")
Product = type[PackedLinear] | type[HalfLinear] | type[StreamedLinear]
PRODUCTS: Final[tuple[Product, ...]] = (PackedLinear, HalfLinear, StreamedLinear)
"""Layers over weights in a kernel's own layout. Each has `dtype`, of inputs and outputs, and `dense_weight()`."""


def product_kind(dtype: torch.dtype, device: torch.device, *, invariant: bool, halves: bool) -> Product | None:
    """None where the model's own layers are as fast. halves: weights are kept in float16."""
    if halves:
        return HalfLinear
    if dtype == torch.bfloat16 and device.type == "cpu" and compiled.available():
        return StreamedLinear
    return PackedLinear if should_pack(dtype, device, invariant) else None


def pack_linears(model: Any, product: Product = PackedLinear, kinds: tuple[type[nn.Module], ...] = (nn.Linear,)) -> int:
    """Replace every `torch.nn.Linear` of the model by a `product`; returns how many were replaced.

    kinds: other classes of such layers, with `weight` [out_features, in_features] and `bias`.

    The replaced weights are freed, so the model can't be saved or trained afterwards. A weight that is also used
    elsewhere (an embedding tied to the output layer) stays where it is used.
    """
    found = [
        (module, name, child)
        for module in list(model.modules())
        for name, child in list(module.named_children())
        if type(child) in kinds
    ]
    makes: list[Callable[[], nn.Module]] = [partial(product, child.weight, child.bias) for _, _, child in found]
    places = [(module, name) for module, name, _ in found]
    del found
    for (module, name), made in zip(places, in_threads(makes), strict=True):
        setattr(module, name, made)
    return len(places)


def in_threads(makes: list[Callable[[], Made]]) -> Iterator[Made]:
    """What the calls give, in their order, while others run: FBGEMM packs with one thread. Empties the list."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        makes.reverse()
        futures = deque(pool.submit(makes.pop()) for _ in range(len(makes)))
        while futures:
            yield futures.popleft().result()
