"""In how many ways do this machine's kernels sum? Asked with sums that cancel.

Two orders of one float32 sum differ in the last bits, and rounding to bfloat16 hides that from all but one output in a
thousand or fewer: a probe with ordinary numbers passes, and some texts differ all the same. So the terms here come in
pairs of opposite sign, at random places. The exact result is zero, what is left is the rounding of the partial sums,
and another order gives other bits nearly everywhere.

- `least_rows` asks the model's own linear layers, kind by kind, for the number of rows from which on a row's result
  doesn't depend on how many there are. Kernels for a single row often sum differently from those for many.
- `attention_agrees` asks attention for the same, over numbers of queries and key lengths.
- `chunks_move` asks it whether a sum stays the same when its last keys lie further on (`branches.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from draftproof.targets.branches import CHUNK
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.fused import FamilyPart
from draftproof.targets.layers import Layers
from draftproof.targets.masks import additive
from draftproof.targets.packed import attend_stacked
from draftproof.targets.shapes import QUERY_STEP

WIDTHS: Final = (*range(1, 34), 40, 48, 63, 64, 65, 96, 128, 200, 256, 384, 512)
"""Numbers of rows that are tried; the last is what the others are compared with."""
LARGE: Final = 1 << 24
"""Weights of more numbers than this, output layers mostly, are tried at `FEW_WIDTHS` alone."""
FEW_WIDTHS: Final = (*range(1, 10), 15, 16, 17, 31, 32, 33, 64, 65, 128)
SEED: Final = 57
NUM_QUERIES: Final = (4, 8, 12, 16, 20, 32, 48, 64, 100, 256, 512)
NUM_SEGMENTS: Final = (1, 2, 5)
KEY_LENGTHS: Final = (256, 768, 1280)
DISTINCT_OUTPUTS: Final = 256


@torch.no_grad()
def least_rows(model: Any, products: Sequence[nn.Module] = ()) -> int:
    """The least number of rows from which on no linear layer's result depends on it; 1 where it never does.

    products: linear layers that stand in for some of the model's.
    Layers of other kinds than `torch.nn.Linear`, its replacements here and transformers' Conv1D are not asked.
    """
    least = 1
    for layer, shape, dtype, device in _kinds(model, products):
        features = _cancelling(WIDTHS[-1], shape[1], dtype, device, opposite=False)
        widths = FEW_WIDTHS if shape[0] * shape[1] > LARGE else WIDTHS
        expected = layer(features[: widths[-1]])
        for width in reversed(widths[:-1]):
            if width < least:
                break
            if not torch.equal(layer(features[:width]), expected[:width]):
                least = width + 1
    return least


@torch.no_grad()
def attention_agrees(layers: Layers, num_heads: int) -> bool:
    """Does a query's result depend on how many queries and segments are computed with it, at any key length?"""
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        for key_length in KEY_LENGTHS:
            keys, values = _opposite_values(shape, key_length)
            queries = _random(NUM_QUERIES[-1], num_heads * shape.key_dim, shape.dtype, shape.device)
            queries = queries.view(-1, num_heads, shape.key_dim).transpose(0, 1)
            expected: torch.Tensor | None = None
            for num_queries in reversed(NUM_QUERIES):
                for num_segments in NUM_SEGMENTS if num_queries <= 16 else (1,):
                    if num_segments * num_queries > NUM_QUERIES[-1]:
                        continue
                    found = _attend(queries, keys, values, num_segments, num_queries)
                    expected = found if expected is None else expected
                    if not torch.equal(found, expected[: len(found)]):
                        return False
    return True


@torch.no_grad()
def chunks_move(layers: Layers, num_heads: int, key_length: int, column: int) -> bool:
    """Of the keys before `column`, does a query get the same from the last `CHUNK` if they lie as much further on?

    A kernel adds up the keys in blocks, and the blocks' sums: across the beginning of a block they can't be moved.
    """
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        keys, values = _opposite_values(shape, column)
        queries = _random(QUERY_STEP, num_heads * shape.key_dim, shape.dtype, shape.device)
        queries = queries.view(-1, num_heads, shape.key_dim).transpose(0, 1)
        found = []
        for begin in (column - CHUNK, column):
            seen = torch.zeros(key_length, dtype=torch.bool, device=shape.device)
            seen[: column - CHUNK] = seen[begin : begin + CHUNK] = True
            wide_keys, wide_values = (part.new_zeros(shape.heads, key_length, part.shape[2]) for part in (keys, values))
            wide_keys[:, seen], wide_values[:, seen] = keys, values
            mask = additive(seen, shape.dtype).expand(1, 1, num_heads // shape.heads * QUERY_STEP, key_length)
            found.append(attend_stacked(queries, wide_keys[None], wide_values[None], mask, QUERY_STEP))
        if not torch.equal(*found):
            return False
    return True


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, num_segments: int, num_queries: int
) -> torch.Tensor:
    """[num_segments · num_queries, heads, value dim]; every segment reads the same keys."""
    groups, key_length = queries.shape[0] // keys.shape[0], keys.shape[1]
    used = queries[:, : num_segments * num_queries]
    mask = torch.zeros(num_segments, 1, groups * num_queries, key_length, dtype=keys.dtype, device=keys.device)
    shared = (num_segments, *keys.shape)
    return attend_stacked(used, keys.expand(shared), values.expand(*shared[:-1], values.shape[-1]), mask, num_queries)


def _kinds(
    model: Any, products: Sequence[nn.Module] = ()
) -> Iterator[tuple[Any, tuple[int, int], torch.dtype, torch.device]]:
    """One layer of each kind and size that the model has, over weights whose rows cancel."""
    seen = set()
    for module in (*model.modules(), *products):
        if isinstance(module, FamilyPart):
            module = module.family.product
        if type(module) is nn.Linear or type(module) is PackedLinear:
            shape = (module.out_features, module.in_features)
        elif type(module) is Conv1D:
            shape = (int(module.weight.shape[1]), int(module.weight.shape[0]))
        else:
            continue
        biased = module.bias is not None
        some = module.bias if type(module) is PackedLinear and biased else next(module.parameters(), None)
        dtype = torch.float32 if some is None else some.dtype
        device = torch.device("cpu") if some is None else some.device
        kind = (type(module), shape, biased, dtype, device)
        if kind not in seen:
            seen.add(kind)
            yield _twin(module, shape, dtype, device), shape, dtype, device


def _twin(module: Any, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Any:
    """The layer with other weights and a bias of zero."""
    num_distinct = min(shape[0], DISTINCT_OUTPUTS)
    weight = _cancelling(num_distinct, shape[1], dtype, device, opposite=True)
    weight = weight.repeat(-(-shape[0] // num_distinct), 1)[: shape[0]]
    bias = None
    if module.bias is not None:
        bias = nn.Parameter(torch.zeros(shape[0], dtype=dtype, device=device), requires_grad=False)
    if type(module) is PackedLinear:
        return PackedLinear(weight, bias)
    twin = copy(module)
    weight = weight.T.contiguous() if type(module) is Conv1D else weight
    twin._parameters = {"weight": nn.Parameter(weight, requires_grad=False), "bias": bias}
    return twin


def _random(num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED + num_columns)
    return torch.randn(num_rows, num_columns, generator=generator).to(device, dtype)


def _places(num_columns: int) -> torch.Tensor:
    return torch.randperm(num_columns, generator=torch.Generator().manual_seed(SEED))


def _cancelling(
    num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device, *, opposite: bool
) -> torch.Tensor:
    """[num_rows, num_columns]: columns in pairs of equal numbers, or opposite ones, at the same places for a width."""
    half = _random(num_rows, num_columns // 2, dtype, device)
    odd = half.new_zeros(num_rows, num_columns % 2)
    whole = torch.cat([half, -half if opposite else half, odd], dim=1)
    return whole[:, _places(num_columns).to(device)].contiguous()


def _opposite_values(shape: Any, key_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """keys [heads, key_length, key_dim] in equal pairs, and values in opposite ones."""
    found = []
    for dim, sign in ((shape.key_dim, 1), (shape.value_dim, -1)):
        half = _random(key_length // 2, shape.heads * dim, shape.dtype, shape.device)
        rows = torch.cat([half, sign * half])[_places(key_length).to(shape.device)]
        found.append(rows.view(key_length, shape.heads, dim).transpose(0, 1).contiguous())
    return found[0], found[1]
