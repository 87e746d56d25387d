"""Attention of a forward in machine code: each query adds up the keys that it sees, in their order.

A request's own tokens stand behind its context, in their order, and a token of a tree skips what aren't its ancestors.
So no keys are copied or moved for trees, and the bits are those of a chain (`attention_ir.py` says why).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import log
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.errors import ModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cache import SlotCache
from draftproof.targets.layers import Layers
from draftproof.targets.native import turning
from draftproof.targets.native.attention_ir import tokens_of_block
from draftproof.targets.native.compiled import attention, available
from draftproof.targets.native.text import LANES
from draftproof.targets.static.operations import Heads, Turning

LOG2_E: Final = 1.0 / log(2.0)


def fits(layers: Layers, num_heads: int) -> bool:
    """Can all layers be attended so? bfloat16 on the CPU, keys and values of one size, a multiple of 16, at most 16
    query heads for a key head, no windows."""
    shapes = {shape for shape in layers.shapes if shape.heads}
    if not shapes or any(window is not None for window in layers.windows.values()):
        return False
    for shape in shapes:
        if shape.device.type != "cpu" or shape.dtype != torch.bfloat16 or shape.key_dim != shape.value_dim:
            return False
        if shape.key_dim % LANES or num_heads % shape.heads or num_heads // shape.heads > LANES:
            return False
    return available()


class Blocks(NamedTuple):
    """Of a forward, as attention_ir.py wants them. num_keys: the most columns of a block."""

    fields: torch.Tensor
    masks: torch.Tensor
    num_keys: int


class RowAttention:
    """One forward's. starts: of each request, how many entries its slot holds. num_tokens: padding included."""

    def __init__(
        self, cache: SlotCache, requests: Sequence[ScoreRequest], starts: Sequence[int], num_tokens: int
    ) -> None:
        self._requests, self._starts, self._num_tokens = requests, starts, num_tokens
        self._offsets = [cache.extents.offsets[request.slot] for request in requests]
        self._num_threads = torch.get_num_threads()
        self._blocks: dict[int, Blocks] = {}
        self._scratch: torch.Tensor | None = None
        self._columns: torch.Tensor | None = None
        self._places = {
            layer: (group.keys, group.values, index)
            for group in cache.groups
            for index, layer in enumerate(group.layers)
        }

    def turned(self, layer: int, joined: torch.Tensor, heads: Heads, angles: Turning) -> torch.Tensor | None:
        """Queries [tokens, heads, dim] of a layer's joined projection, and its keys and values in the cache; None, and
        nothing done, where that isn't for `turning.py`."""
        keys, values, index = self._places[layer]
        if keys.dtype != torch.bfloat16 or len(joined) != self._num_tokens or not turning.fits(joined, heads, angles):
            return None
        if self._columns is None:
            self._columns = torch.tensor(
                [
                    offset + start + place
                    for offset, start, request in zip(self._offsets, self._starts, self._requests, strict=True)
                    for place in range(len(request.token_ids))
                ]
            )
        return turning.turn(joined, heads, angles, keys[index], values[index], self._columns)

    def __call__(self, layer: int, query: torch.Tensor, scale: float | None, dropout: float) -> torch.Tensor:
        """query [tokens, heads, dim] to [tokens, heads · dim]; the layer's keys and values have been written."""
        if dropout:
            raise ModelError("attention in a target has no dropout; put the model in eval mode")
        keys, values, index = self._places[layer]
        if query.dtype != keys.dtype or len(query) != self._num_tokens:
            raise ModelError(
                f"attention was given {len(query)} queries in {query.dtype}; the forward has {self._num_tokens}, and "
                f"keys in {keys.dtype}"
            )
        num_heads, kv_heads, dim = query.shape[1], keys.shape[1], query.shape[2]
        blocks = self._blocks.get(num_heads // kv_heads)
        if blocks is None:
            blocks = self._blocks[num_heads // kv_heads] = self._made(num_heads // kv_heads)
        if query.stride(2) != 1 or query.stride(1) != dim:
            query = query.contiguous()
        if self._scratch is None or len(self._scratch) < self._num_threads * blocks.num_keys:
            self._scratch = torch.empty(self._num_threads * blocks.num_keys, LANES)
        out = query.new_empty(self._num_tokens, num_heads * dim)
        size = keys.element_size()
        attention(kv_heads, num_heads // kv_heads, dim)(
            query.data_ptr(),
            keys.data_ptr() + size * index * keys.stride(0),
            values.data_ptr() + size * index * values.stride(0),
            out.data_ptr(),
            blocks.fields.data_ptr(),
            len(blocks.fields),
            blocks.masks.data_ptr(),
            self._scratch.data_ptr(),
            blocks.num_keys,
            size * query.stride(0),
            size * keys.stride(1),
            size * values.stride(1),
            (dim**-0.5 if scale is None else scale) * LOG2_E,
            self._num_threads,
        )
        return out

    def _made(self, groups: int) -> Blocks:
        """Blocks of all requests, and of padding, which reads one key."""
        most, first, fields, masks = tokens_of_block(groups), 0, [], []
        for request, start, offset in zip(self._requests, self._starts, self._offsets, strict=True):
            num, tree = len(request.token_ids), None if request.parents is None else _seen(request.parents)
            for begin in range(0, num, most):
                count = min(most, num - begin)
                if tree is None:
                    fields.append((first + begin, count, offset, start + begin + 1, count - 1))
                    masks.append(_chain(count, groups))
                else:
                    fields.append((first + begin, count, offset, start + 1, begin + count - 1))
                    masks.append(_bits(tree[begin : begin + count, 1 : begin + count], groups))
            first += num
        for begin in range(first, self._num_tokens, most):
            fields.append((begin, min(most, self._num_tokens - begin), self._offsets[0], 1, 0))
        num_keys = max(shared + own for _, _, _, shared, own in fields)
        joined = np.concatenate(masks) if masks else np.empty(0, dtype=np.int16)
        return Blocks(torch.tensor(fields), torch.from_numpy(joined), num_keys)


def _seen(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[nodes, nodes] does a node see another: itself and its ancestors."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


@cache
def _lanes(groups: int) -> NDArray[Any]:
    """[tokens] the bits of a token's lanes."""
    return np.array([((1 << groups) - 1) << (groups * token) for token in range(LANES // groups)], dtype=np.int64)


def _bits(seen: NDArray[np.bool_], groups: int) -> NDArray[np.int16]:
    """[columns] which lanes see a column. seen [tokens, columns]."""
    found: NDArray[np.int16] = (_lanes(groups)[: len(seen)] @ seen).astype(np.uint16).view(np.int16)
    return found


@cache
def _chain(count: int, groups: int) -> NDArray[np.int16]:
    """Of the tokens of a chain behind the first."""
    return _bits(np.tri(count, dtype=np.bool_)[:, 1:], groups)
