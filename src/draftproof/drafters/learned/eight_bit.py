"""Linear layers of drafters in 8 bits, on CPUs with vector products of bytes.

A narrow forward is bound by reading weights: half the bytes of bfloat16 take half the time (AMD EPYC, 1 to 8 rows:
`benchmarks/drafter_products.py` prints the table). A draft may be computed at any precision: the verifier decides what
is emitted, and the laws that ratio tests divide by are those of the numbers found here.
Weights: a scale for each output, rounded to -127 to 127; to -63 to 63 where the processor adds products of two bytes in
16 bits, which would overflow. Inputs: a scale for all rows of a call, found anew in each.
So inputs with a few large numbers (hidden states of a target, as they are) lose all others: the context's projection
is no such layer. Kernel: FBGEMM's, which is a part of PyTorch; its sums are of integers, so they have no order. Later
releases of PyTorch may drop it: where it is missing, drafters compute in the target's type.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import torch
from torch import nn

from draftproof.drafters.learned.modules import Linear
from draftproof.targets.cpu_linear import Direct
from draftproof.targets.dtype import cpu_flags

_FLAGS: Final = {"avx512_vnni"}
"""Adds products of bytes in 32 bits, and FBGEMM uses it. Elsewhere, with AVX-VNNI too, it adds two in 16 bits first."""
_LARGEST, _LARGEST_IN_PAIRS = 127, 63
"""2 · 255 · 63 < 2 ** 15."""
_LEFT: Final = {"fc", "eh_proj", "proj"}
_CALLS: Final = ("fbgemm_pack_quantized_matrix", "fbgemm_linear_int8_weight_fp32_activation")


class EightBitLinear(Direct):
    """`torch.nn.Linear` with its weight in 8 bits: input [..., in_features] to [..., out_features], no gradients."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features], bias: [out_features], of any float type."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        weight = weight.detach().float()
        largest = _LARGEST if _FLAGS & cpu_flags() else _LARGEST_IN_PAIRS
        self._scales = (weight.abs().amax(dim=1) / largest).clamp_min(torch.finfo(torch.float32).tiny)
        self._weight = (weight / self._scales[:, None]).round().to(torch.int8)
        self._sums = self._weight.sum(dim=1, dtype=torch.int32)
        self._bias = None if bias is None else bias.detach().float()
        self._nothing = torch.zeros(self.out_features)
        with warnings.catch_warnings():
            # Each says once that it is deprecated; see `takes_eight_bits`.
            warnings.simplefilter("ignore", UserWarning)
            self._packed = torch.fbgemm_pack_quantized_matrix(self._weight)
            self(torch.zeros(1, self.in_features))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.fbgemm_linear_int8_weight_fp32_activation(
            features.float(), self._weight, self._packed, self._sums, 1.0, 0, self._nothing
        )
        out = out.mul_(self._scales) if self._bias is None else torch.addcmul(self._bias, out, self._scales)
        return out.to(features.dtype)

    def dense_weight(self) -> torch.Tensor:
        """[out_features, in_features] what the weights stand for, in float32."""
        return self._weight * self._scales[:, None]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, 8 bits"


def to_eight_bits(module: nn.Module) -> None:
    """Replace the linear layers of a drafter, but for those that read hidden states of the target or say how sure it
    is. The replaced weights are freed."""
    for part in list(module.modules()):
        children: list[tuple[str, Any]] = list(part.named_children())
        for name, child in children:
            if type(child) in (nn.Linear, Linear) and name not in _LEFT:
                setattr(part, name, EightBitLinear(child.weight, child.bias))


def takes_eight_bits(device: torch.device, *, is_rounded: bool) -> bool:
    """Does a drafter compute in 8 bits here? Only where the target itself has rounded weights, `is_rounded`."""
    if not is_rounded or device.type != "cpu" or not (_FLAGS | {"avx2"}) & cpu_flags():
        return False
    return "fbgemm" in torch.backends.quantized.supported_engines and all(hasattr(torch, name) for name in _CALLS)
