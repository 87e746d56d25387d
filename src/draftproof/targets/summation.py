"""In how many ways do this machine's kernels sum? Asked with sums that cancel.

Two orders of one float32 sum differ in the last bits, and rounding to bfloat16 hides that from all but one output in a
thousand or fewer: a probe with ordinary numbers passes, and some texts differ all the same. So the terms here come in
pairs of opposite sign, at random places. The exact result is zero, what is left is the rounding of the partial sums,
and another order gives other bits nearly everywhere.

- `row_window` asks the model's own linear layers, kind by kind, from how many rows to how many a row's result doesn't
  depend on how many there are. Kernels for a single row often sum differently from those for many, and these from
  those for hundreds. `limit_rows` has packed layers compute as many rows at a time as sum in one order, and those that
  keep their weights in float16 such numbers of rows as agree: one in six doesn't.

Attention is asked in `key_order.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.fused import FamilyPart
from draftproof.targets.half_linear import HalfLinear
from draftproof.targets.products import PRODUCTS

WIDTHS: Final = (*range(1, 34), 40, 48, 63, 64, 65, 96, 128, 200, 256, 384, 512)
"""Numbers of rows that are tried."""
USUAL: Final = 32
"""What the others are compared with."""
LARGE: Final = 1 << 24
"""Weights of more numbers than this, output layers mostly, are tried at `FEW_WIDTHS` alone."""
FEW_WIDTHS: Final = (*range(1, 10), 15, 16, 17, 31, 32, 33, 64, 65, 128)
HALF_BLOCK: Final = 6
"""Rows that an AVX2 kernel over weights in float16 computes together; other numbers of them are compared with these."""
HALF_WIDTHS: Final = (*range(1, 21), *range(24, 49, 6), 72, 96, 192, 384)
"""Numbers of rows that layers with weights in float16 are asked with, those with `LARGE` weights with up to 48."""
MOST_LARGE: Final = 48
SEED: Final = 57
DISTINCT_OUTPUTS: Final = 256


@dataclass(frozen=True, slots=True)
class Key:
    """What kernels choose by. shape: [out_features, in_features]."""

    kind: type[nn.Module]
    shape: tuple[int, int]
    biased: bool
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Kind:
    """A layer, and one like it with weights that cancel."""

    of: Any
    key: Key

    @cached_property
    def layer(self) -> Any:
        """Made when it is asked: to pack an output layer takes long."""
        return _twin(self.of, self.key)

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of rows that it is asked with."""
        large = self.key.shape[0] * self.key.shape[1] > LARGE
        if self.key.kind is HalfLinear:
            return tuple(width for width in HALF_WIDTHS if width <= MOST_LARGE) if large else HALF_WIDTHS
        return FEW_WIDTHS if large else WIDTHS


@torch.no_grad()
def row_window(model: Any, products: Sequence[nn.Module] = ()) -> tuple[int, int | None]:
    """Between which numbers of rows, `USUAL` among them, no linear layer's result depends on it; None: up to any.

    products: linear layers that stand in for some of the model's.
    Layers of other kinds than `torch.nn.Linear`, its replacements here and transformers' Conv1D are not asked, nor
    those that `limit_rows` has told which numbers agree: of these any number does from the least on.
    """
    least, most = 1, WIDTHS[-1]
    for kind in _kinds(model, products):
        counts = getattr(kind.of, "counts", None)
        if counts is None:
            least, most = _window(kind, least, most)
        else:
            # More rows are made of such numbers; fewer as well, but in every layer anew.
            least = max(least, counts[0])
    return least, most if most < WIDTHS[-1] else None


@torch.no_grad()
def limit_rows(model: Any, products: Sequence[nn.Module] = ()) -> None:
    """Let each packed layer compute as many rows at a time as were asked and sum in one order."""
    limits, counts = {}, {}
    for module in _products(model, products):
        _set_limits(module, None, None)
    for kind in _kinds(model, products):
        if kind.key.kind is PackedLinear:
            _, limits[kind.key] = _window(kind, USUAL, kind.widths[-1])
        elif kind.key.kind is HalfLinear:
            counts[kind.key] = _agreeing(kind)
    for module in _products(model, products):
        _set_limits(module, limits.get(_key_of(module)), counts.get(_key_of(module)))


def _set_limits(module: Any, most_rows: int | None, counts: tuple[int, ...] | None) -> None:
    if type(module) is PackedLinear:
        module.most_rows = most_rows
    elif type(module) is HalfLinear:
        module.counts = counts


def _agreeing(kind: Kind) -> tuple[int, ...]:
    """The numbers of rows whose results are those of `HALF_BLOCK` rows at a time."""
    features = _features(kind, kind.widths[-1])
    expected = torch.cat([kind.layer(part) for part in torch.split(features, HALF_BLOCK)])
    return tuple(width for width in kind.widths if torch.equal(kind.layer(features[:width]), expected[:width]))


def _window(kind: Kind, least: int, most: int) -> tuple[int, int]:
    """What of the window between `least` and `most` rows agrees; what wasn't asked is left as it is."""
    features = _features(kind, max(USUAL, kind.widths[-1]))
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


def _features(kind: Kind, num_rows: int) -> torch.Tensor:
    return _cancelling(num_rows, kind.key.shape[1], kind.key.dtype, kind.key.device, opposite=False)


def _products(model: Any, products: Sequence[nn.Module]) -> Iterator[Any]:
    """All linear layers that are asked; some of them more than once."""
    for module in (*model.modules(), *products):
        found = module.family.product if isinstance(module, FamilyPart) else module
        if type(found) in (nn.Linear, *PRODUCTS, Conv1D):
            yield found


def _key_of(module: Any) -> Key:
    if type(module) is Conv1D:
        shape = (int(module.weight.shape[1]), int(module.weight.shape[0]))
    else:
        shape = (module.out_features, module.in_features)
    if type(module) in PRODUCTS:
        return Key(type(module), shape, module.bias is not None, module.dtype, torch.device("cpu"))
    return Key(type(module), shape, module.bias is not None, module.weight.dtype, module.weight.device)


def _kinds(model: Any, products: Sequence[nn.Module] = ()) -> Iterator[Kind]:
    """One layer of each kind and size that the model has, over weights whose rows cancel."""
    seen = set()
    for module in _products(model, products):
        key = _key_of(module)
        if key not in seen:
            seen.add(key)
            yield Kind(module, key)


def _twin(module: Any, key: Key) -> Any:
    """The layer with other weights and a bias of zero."""
    shape, dtype, device = key.shape, key.dtype, key.device
    num_distinct = min(shape[0], DISTINCT_OUTPUTS)
    weight = _cancelling(num_distinct, shape[1], dtype, device, opposite=True)
    weight = weight.repeat(-(-shape[0] // num_distinct), 1)[: shape[0]]
    bias = nn.Parameter(torch.zeros(shape[0], dtype=dtype, device=device), requires_grad=False) if key.biased else None
    if type(module) in PRODUCTS:
        packed = type(module)(weight, bias)
        _set_limits(packed, getattr(module, "most_rows", None), getattr(module, "counts", None))
        return packed
    twin = copy(module)
    weight = weight.T.contiguous() if type(module) is Conv1D else weight
    twin._parameters = {"weight": nn.Parameter(weight, requires_grad=False), "bias": bias}
    return twin


def random_rows(num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[num_rows, num_columns], the same for a width."""
    generator = torch.Generator().manual_seed(SEED + num_columns)
    return torch.randn(num_rows, num_columns, generator=generator).to(device, dtype)


def places(num_columns: int) -> torch.Tensor:
    """Where the columns of a sum that cancels lie."""
    return torch.randperm(num_columns, generator=torch.Generator().manual_seed(SEED))


def _cancelling(
    num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device, *, opposite: bool
) -> torch.Tensor:
    """[num_rows, num_columns]: columns in pairs of equal numbers, or opposite ones, at the same places for a width."""
    half = random_rows(num_rows, num_columns // 2, dtype, device)
    odd = half.new_zeros(num_rows, num_columns % 2)
    whole = torch.cat([half, -half if opposite else half, odd], dim=1)
    return whole[:, places(num_columns).to(device)].contiguous()
