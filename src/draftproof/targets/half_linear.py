"""Linear layers whose weights are kept in float16 and whose arithmetic is float32, on x86 CPUs.

A narrow forward is bound by reading weights. A processor that multiplies no bfloat16 would read them in float32; in
float16 it reads half the bytes, and widens each weight in a register before it is multiplied and added in float32. So
only the weights are rounded, to 11 bits (bfloat16 has 8). Two cores with AVX2, the products of the default model: half
the time of float32 or less for 1 to 6 rows, 60 % for 16, as long for 512 (benchmarks/forward_width.py: whole forwards).

Kernel: FBGEMM's, which is a part of PyTorch. It cuts the rows into blocks of up to 6 (14 with AVX-512), and blocks of
1 or 2 rows add up in another order than the others. Where that matters, `counts` are the numbers of rows that
agree with each other (`summation.limit_rows` asks), and other numbers are computed with rows of zeros beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import nn
from torch.nn.functional import pad

from draftproof.targets.cpu_linear import Direct


class HalfLinear(Direct):
    """`torch.nn.Linear` with its weight in float16: float32 [..., in_features] to float32 [..., out_features], no
    gradients.

    counts: the numbers of rows, ascending, that are computed at once; None for any.
    """

    counts: tuple[int, ...] | None = None

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features] of any float type, within float16's range. bias: [out_features]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype, self.bias = torch.float32, None if bias is None else bias.detach().float()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().float().contiguous(), self.bias)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.counts is None:
            return self._product(features)
        rows = features.reshape(-1, self.in_features)
        sizes = cut(rows.shape[0], self.counts)
        if sizes == (rows.shape[0],):
            return self._product(features)
        rows = pad(rows, (0, 0, 0, sum(sizes) - rows.shape[0]))
        parts = [self._product(part) for part in torch.split(rows, list(sizes))]
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out[: features.numel() // self.in_features].view(*features.shape[:-1], self.out_features)

    def _product(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(features, self._packed)
        return out

    def dense_weight(self) -> torch.Tensor:
        """[out_features, in_features] the rounded numbers, in float32."""
        weight: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return weight

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, weights in float16"


@cache
def cut(num_rows: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Which of `counts`, ascending, `num_rows` rows are computed in; their sum is `num_rows` or a little more."""
    sizes, left = [], num_rows
    while left > 0:
        above = next((count for count in counts if count >= left), None)
        below = next((count for count in reversed(counts) if count <= left), None)
        fits = above is not None and (below is None or above - left <= max(2, left // 8))
        size = above if fits else below
        assert size is not None
        sizes.append(size)
        left -= size
    return tuple(sizes)


def too_large(model: nn.Module) -> str | None:
    """The name of a parameter with numbers beyond float16's range, or None."""
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point() and tensor.numel():
            ends = torch.stack(torch.aminmax(tensor.detach())).half()
            if not torch.isfinite(ends).all():
                return name
    return None


@torch.no_grad()
def round_weights(model: nn.Module) -> None:
    """Round every parameter to float16, kept in its own type."""
    for tensor in model.parameters():
        if tensor.is_floating_point():
            tensor.copy_(tensor.half())


def has_halves(model: nn.Module) -> bool:
    """Does the model keep weights in float16 and compute in float32?"""
    return any(type(module) is HalfLinear for module in model.modules())
