"""Keys and values that show in what order attention adds up its weights.

An output is its weighted values over the sum of the weights. The weights are positive, so another order changes the
last bit of their sum alone, and rounding to bfloat16 hides that from all but a few outputs in 100,000: neither
ordinary numbers nor values that cancel show it. So the values are a ruler. Eight weights are 1 and all others are so
small that together they come to a few units in the last place of 8, where most of them round. Output d is then
(1 + h + d u) / (1 + s), with u the unit in the last place, s what the sum has beyond 8, and h half of what separates 1
from the next number of the outputs' dtype: those with d u above s are rounded up, the others down. So a sum that
differs by one unit changes an output. A kernel's exp(0) may be less than 1 by hundreds of units: where the ruler has to
begin is found by others with coarser marks. In float32 an output shows its sum by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Final

import torch

MOST_MARKS: Final = 64
REACH: Final = 4096
"""Units in the last place, within which a kernel's sum of eight ones is."""
_NUM_ONES: Final = 8
_NUM_FIELDS: Final = 15
"""Dimensions of a key, besides the first, that make a key's weight differ from query to query."""
_SPREAD: Final = 0.8
"""Of a weight's logarithm."""


@dataclass(frozen=True, slots=True)
class Asked:
    """queries [heads, num_queries, key_dim], keys and values [kv_heads, num_keys, dim]."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float | None = None


Attend = Callable[[Asked], torch.Tensor]
"""Attention over the keys in their order: [num_queries, heads, value_dim]."""


def ruler(shape: Any, num_heads: int, num_queries: int, num_keys: int, attend: Attend, seed: int) -> Asked:
    """A ruler with `num_keys` keys, 16 at least, centred for the kernel. shape: a `LayerShape`."""
    generator = torch.Generator().manual_seed(seed)
    eps, unit = torch.finfo(shape.dtype).eps, _NUM_ONES * torch.finfo(torch.float32).eps
    num_marks, num_fields = min(MOST_MARKS, shape.value_dim), min(_NUM_FIELDS, shape.key_dim - 1)
    queries = torch.zeros(num_heads, num_queries, shape.key_dim)
    queries[..., 0] = 1
    queries[..., 1 : num_fields + 1] = torch.randn(num_heads, num_queries, num_fields, generator=generator)
    keys = torch.zeros(shape.heads, num_keys, shape.key_dim)
    keys[..., 0] = log(num_marks / 3 * unit / num_keys) - _SPREAD**2 / 2
    keys[..., 1 : num_fields + 1] = torch.randn(shape.heads, num_keys, num_fields, generator=generator)
    keys[..., 1 : num_fields + 1] *= _SPREAD / num_fields**0.5
    heads = torch.arange(shape.heads)
    ones = torch.stack([torch.randperm(num_keys, generator=generator)[:_NUM_ONES] for _ in heads])
    keys[heads[:, None], ones] = 0
    marks = torch.arange(shape.value_dim) % num_marks - num_marks // 2

    def marked(step: float, begins: Sequence[float]) -> Asked:
        values = torch.zeros(shape.heads, num_keys, shape.value_dim)
        values[heads, ones[:, 0]] = _NUM_ONES
        values[heads, ones[:, 1]] = step * marks
        for index, begin in enumerate(begins):
            values[heads, ones[:, 2 + index]] = begin
        given = [part.to(shape.device, shape.dtype) for part in (queries, keys, values)]
        return Asked(given[0], given[1], given[2], scale=1.0)

    if eps == torch.finfo(torch.float32).eps:
        return marked(unit, ())
    begins, step = [_NUM_ONES * eps / 2], unit
    while step * num_marks < REACH * unit:
        step *= num_marks
    while step > unit:
        is_up = (attend(marked(step, begins)) > 1).float()
        begins.append(step * (round(float(num_marks * (0.5 - is_up.mean()))) - 0.5))
        step /= num_marks
    return marked(unit, begins)
