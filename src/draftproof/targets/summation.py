"""In how many ways do this machine's kernels sum? Asked with sums that cancel.

Two orders of one float32 sum differ in the last bits, and rounding to bfloat16 hides that from all but one output in a
thousand or fewer: a probe with ordinary numbers passes, and some texts differ all the same. So the terms here come in
pairs of opposite sign, at random places. The exact result is zero, what is left is the rounding of the partial sums,
and another order gives other bits nearly everywhere.

- `row_window` asks the model's own linear layers, kind by kind, from how many rows to how many a row's result doesn't
  depend on how many there are. Kernels for a single row often sum differently from those for many, and these from
  those for hundreds. `limit_rows` has packed layers compute as many rows at a time as sum in one order.
- `attention_agrees` asks attention for the same, over numbers of queries and key lengths.
- `spreads` asks it whether a sum stays the same when keys lie further on (`branches.py`).

Attention's weights are positive, and the order of their sum shows in no sum that cancels: both questions are asked with
rulers as well (`ruler.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from draftproof.targets.branches import CHUNK, STRIDE, Room
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.fused import FamilyPart
from draftproof.targets.layers import Layers
from draftproof.targets.masks import additive
from draftproof.targets.packed import attend_stacked
from draftproof.targets.ruler import Asked, ruler
from draftproof.targets.shapes import KEY_STEP, padded_queries

WIDTHS: Final = (*range(1, 34), 40, 48, 63, 64, 65, 96, 128, 200, 256, 384, 512)
"""Numbers of rows that are tried."""
USUAL: Final = 32
"""What the others are compared with."""
LARGE: Final = 1 << 24
"""Weights of more numbers than this, output layers mostly, are tried at `FEW_WIDTHS` alone."""
FEW_WIDTHS: Final = (*range(1, 10), 15, 16, 17, 31, 32, 33, 64, 65, 128)
SEED: Final = 57
NUM_QUERIES: Final = (*range(2, 18, 2), *range(20, 68, 4), 100, 256, 512)
NUM_SEGMENTS: Final = (1, 2, 5)
KEY_LENGTHS: Final = (64, 128, 192, 256, 320, 768, 1280)
DISTINCT_OUTPUTS: Final = 256
NUM_SPREAD: Final = 6
NUM_MOVED: Final = 16
"""Queries that are asked whether chunks move: where another order is possible, one in ten or twenty shows it."""


@dataclass(frozen=True, slots=True)
class Key:
    """What kernels choose by. shape: [out_features, in_features]."""

    kind: type[nn.Module]
    shape: tuple[int, int]
    biased: bool
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Kind:
    """A layer with weights that cancel."""

    layer: Any
    key: Key

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of rows that it is asked with."""
        return FEW_WIDTHS if self.key.shape[0] * self.key.shape[1] > LARGE else WIDTHS


@torch.no_grad()
def row_window(model: Any, products: Sequence[nn.Module] = ()) -> tuple[int, int | None]:
    """Between which numbers of rows, `USUAL` among them, no linear layer's result depends on it; None: up to any.

    products: linear layers that stand in for some of the model's.
    Layers of other kinds than `torch.nn.Linear`, its replacements here and transformers' Conv1D are not asked.
    """
    least, most = 1, WIDTHS[-1]
    for kind in _kinds(model, products):
        least, most = _window(kind, least, most)
    return least, most if most < WIDTHS[-1] else None


@torch.no_grad()
def limit_rows(model: Any, products: Sequence[nn.Module] = ()) -> None:
    """Let each packed layer compute as many rows at a time as were asked and sum in one order."""
    limits = {}
    for module in _products(model, products):
        if type(module) is PackedLinear:
            module.most_rows = None
    for kind in _kinds(model, products):
        if type(kind.layer) is PackedLinear:
            _, limits[kind.key] = _window(kind, USUAL, kind.widths[-1])
    for module in _products(model, products):
        if type(module) is PackedLinear:
            module.most_rows = limits[_key_of(module)]


def _window(kind: Kind, least: int, most: int) -> tuple[int, int]:
    """What of the window between `least` and `most` rows agrees; what wasn't asked is left as it is."""
    features = _cancelling(kind.widths[-1], kind.key.shape[1], kind.key.dtype, kind.key.device, opposite=False)
    expected = torch.cat([kind.layer(part) for part in torch.split(features, USUAL)])
    for width in reversed([width for width in kind.widths if least <= width < USUAL]):
        if not torch.equal(kind.layer(features[:width]), expected[:width]):
            least = width + 1
            break
    agreed = USUAL
    for width in (width for width in kind.widths if USUAL < width <= most):
        if not torch.equal(kind.layer(features[:width]), expected[:width]):
            return least, agreed
        agreed = width
    return least, most


@torch.no_grad()
def attention_agrees(layers: Layers, num_heads: int, query_step: int) -> bool:
    """Is a query's result the same however many queries and segments are computed with it, in steps of so many queries,
    at any key length?"""
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        for key_length in KEY_LENGTHS:
            most = NUM_QUERIES[-1]
            measure = partial(_attend, num_segments=1, num_queries=most)
            asked = _opposite(shape, num_heads, most, key_length)
            for given in (asked, ruler(shape, num_heads, most, key_length, measure, SEED)):
                expected = measure(given)
                for num_queries in (n for n in NUM_QUERIES if padded_queries(n, query_step) == n):
                    for num_segments in NUM_SEGMENTS if num_queries <= 16 else (1,):
                        if num_segments * num_queries > NUM_QUERIES[-1]:
                            continue
                        found = _attend(given, num_segments, num_queries)
                        if not torch.equal(found, expected[: len(found)]):
                            return False
    return True


@torch.no_grad()
def spreads(layers: Layers, num_heads: int, chain: int, room: Room) -> bool:
    """Does a query get the same from a chain that reads `chain` keys if those of the last two steps lie whole strides
    further on, in order, before the room's stop, and as many keys are read as the room has?

    A kernel adds up the keys in blocks, and the blocks' sums: across the beginning of a block they can't be moved.
    """
    random = torch.Generator().manual_seed(SEED)
    begin = max(chain - 2 * KEY_STEP, 0)
    for shape in dict.fromkeys(layers.shapes):
        if not shape.heads or num_heads % shape.heads:
            continue
        for num_keys in (chain - KEY_STEP // 2 - 2, chain):
            stays = torch.arange(num_keys)
            asked = _opposite(shape, num_heads, NUM_MOVED, num_keys)
            measure = partial(_over, columns=stays, key_length=chain)
            for given in (asked, ruler(shape, num_heads, NUM_MOVED, num_keys, measure, SEED)):
                expected = measure(given)
                for columns in _spread(num_keys, begin, room.stop, random):
                    if not torch.equal(_over(given, columns, room.key_length), expected):
                        return False
    return True


def _spread(num_keys: int, begin: int, stop: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """[num_keys] columns: as they are; from every `CHUNK` on as far on as they can be; and at random."""
    columns = torch.arange(num_keys)
    most = (stop - 1 - columns) // STRIDE
    yield columns
    for first in range(begin, num_keys, CHUNK):
        yield torch.where(columns < first, columns, columns + STRIDE * most[-1].clamp(min=0))
    for _ in range(NUM_SPREAD):
        first = int(torch.randint(begin, num_keys, (), generator=random))
        chance = float(torch.rand((), generator=random)) ** 2
        steps = (torch.rand(num_keys, generator=random) < chance) & (columns >= first)
        moves = steps.cumsum(0).minimum(most[-1].clamp(min=0))
        yield columns + STRIDE * moves


def _over(given: Asked, columns: torch.Tensor, key_length: int) -> torch.Tensor:
    """[queries, heads, value dim]: attention over so many keys, those that are given at these columns."""
    num_heads, num_queries, _ = given.queries.shape
    heads, device = given.keys.shape[0], given.keys.device
    seen = torch.zeros(key_length, dtype=torch.bool, device=device).index_fill(0, columns.to(device), True)
    keys, values = (part.new_zeros(heads, key_length, part.shape[2]) for part in (given.keys, given.values))
    keys[:, seen], values[:, seen] = given.keys, given.values
    mask = additive(seen, keys.dtype).expand(1, 1, num_heads // heads * num_queries, key_length)
    return attend_stacked(given.queries, keys[None], values[None], mask, num_queries, given.scale)


def _attend(given: Asked, num_segments: int, num_queries: int) -> torch.Tensor:
    """[num_segments · num_queries, heads, value dim]; every segment reads the same keys."""
    queries, keys, values = given.queries[:, : num_segments * num_queries], given.keys, given.values
    groups, key_length = queries.shape[0] // keys.shape[0], keys.shape[1]
    mask = torch.zeros(num_segments, 1, groups * num_queries, key_length, dtype=keys.dtype, device=keys.device)
    shared = (num_segments, *keys.shape)
    wide = (keys.expand(shared), values.expand(*shared[:-1], values.shape[-1]))
    return attend_stacked(queries, *wide, mask, num_queries, given.scale)


def _products(model: Any, products: Sequence[nn.Module]) -> Iterator[Any]:
    """All linear layers that are asked; some of them more than once."""
    for module in (*model.modules(), *products):
        found = module.family.product if isinstance(module, FamilyPart) else module
        if type(found) in (nn.Linear, PackedLinear, Conv1D):
            yield found


def _key_of(module: Any) -> Key:
    if type(module) is Conv1D:
        shape = (int(module.weight.shape[1]), int(module.weight.shape[0]))
    else:
        shape = (module.out_features, module.in_features)
    if type(module) is PackedLinear:
        return Key(PackedLinear, shape, module.bias is not None, module.dtype, torch.device("cpu"))
    return Key(type(module), shape, module.bias is not None, module.weight.dtype, module.weight.device)


def _kinds(model: Any, products: Sequence[nn.Module] = ()) -> Iterator[Kind]:
    """One layer of each kind and size that the model has, over weights whose rows cancel."""
    seen = set()
    for module in _products(model, products):
        key = _key_of(module)
        if key not in seen:
            seen.add(key)
            yield Kind(_twin(module, key), key)


def _twin(module: Any, key: Key) -> Any:
    """The layer with other weights and a bias of zero."""
    shape, dtype, device = key.shape, key.dtype, key.device
    num_distinct = min(shape[0], DISTINCT_OUTPUTS)
    weight = _cancelling(num_distinct, shape[1], dtype, device, opposite=True)
    weight = weight.repeat(-(-shape[0] // num_distinct), 1)[: shape[0]]
    bias = nn.Parameter(torch.zeros(shape[0], dtype=dtype, device=device), requires_grad=False) if key.biased else None
    if type(module) is PackedLinear:
        packed = PackedLinear(weight, bias)
        packed.most_rows = module.most_rows
        return packed
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


def _opposite(shape: Any, num_heads: int, num_queries: int, num_keys: int) -> Asked:
    """Random queries, keys in equal pairs, and values in opposite ones."""
    queries = _random(num_queries, num_heads * shape.key_dim, shape.dtype, shape.device)
    found = []
    for dim, sign in ((shape.key_dim, 1), (shape.value_dim, -1)):
        half = _random(num_keys // 2, shape.heads * dim, shape.dtype, shape.device)
        rows = torch.cat([half, sign * half])[_places(num_keys).to(shape.device)]
        found.append(rows.view(num_keys, shape.heads, dim).transpose(0, 1).contiguous())
    return Asked(queries.view(num_queries, num_heads, shape.key_dim).transpose(0, 1), found[0], found[1])
