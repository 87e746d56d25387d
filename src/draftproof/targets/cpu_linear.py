"""Linear layers for narrow forwards on a CPU: oneDNN's kernel over weights packed once.

A forward of 1 to 32 tokens is bound by reading the weights. The general matrix product repacks or rereads them for a
few rows: on a CPU with AVX2 two rows cost it twice as much as one, where oneDNN's kernel over weights that are laid
out for it takes a tenth more (benchmarks/forward_width.py prints the table). Its sum over the input features also
runs in one order whatever the number of rows, so a row's result has the same bits at any width (`invariant.py`
checks this on the machine at hand and doesn't take it for granted). On processors with tile products (AMX) it doesn't:
from 33 rows on some sizes sum in another order, so more rows than that are computed in several pieces there.

The swap is for plain steps and verified steps alike: a target has one kind of linear layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof.targets.dtype import cpu_flags

# The number of rows that the packed layout is chosen for. Packing for 1 row takes another path than for more.
PACKED_FOR_ROWS = 16


class Direct(nn.Module):
    """Called without what a module does around its `forward`, unless somebody has put hooks on it: a narrow forward
    has 121 such calls, of some microseconds each."""

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        if self._forward_hooks or self._forward_pre_hooks:
            found: torch.Tensor = super().__call__(features)
            return found
        return self.forward(features)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class PackedLinear(Direct):
    """`torch.nn.Linear` over a packed weight: input [..., in_features] to [..., out_features], no gradients.

    most_rows: more are computed in pieces of one size or nearly; None for as many as there are. See
    `summation.limit_rows`.
    """

    most_rows: int | None = None

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None) -> None:
        """weight: [out_features, in_features]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self.bias = bias

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.most_rows is not None and features.numel() > self.most_rows * self.in_features:
            rows = features.reshape(-1, self.in_features)
            pieces = rows.tensor_split(-(-rows.shape[0] // self.most_rows))
            return torch.cat([self._product(piece) for piece in pieces]).view(*features.shape[:-1], self.out_features)
        return self._product(features)

    def _product(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(features, self.packed, self.bias, "none", [], "")
        return out

    def dense_weight(self) -> torch.Tensor:
        """[out_features, in_features] the numbers that were packed, unrounded."""
        weight: torch.Tensor = self.packed.to_dense()
        return weight

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Is there a packed kernel for narrow forwards, one whose bits depend on the number of rows no more than torch's?

    In float32 always. In bfloat16 on processors with products of bfloat16: with vector products alone the packed kernel
    sums one row in another order than several, with tile products hundreds in another than few, and so does torch's own
    (`summation.py` asks).
    """
    onednn: Any = torch.backends.mkldnn
    if device.type != "cpu" or not onednn.is_available():
        return False
    if dtype == torch.bfloat16:
        return "avx512_bf16" in cpu_flags()
    return dtype == torch.float32


def should_pack(dtype: torch.dtype, device: torch.device, invariant: bool) -> bool:
    """Does packing pay? A rule of the machine alone, never a measurement: the choice decides the last bits.

    Float32: without AVX-512 the packed product takes 10 to 45 % less time at every width. With it, torch's own is as
    fast from 2 rows on and 15 % faster for one, so packing is left to invariant execution, which needs it. Bfloat16
    (EPYC with AVX-512, one thread): 10 % less for one row, 30 to 40 % less for 2 to 9; with AMX (Xeon, torch 2.13, one
    thread) a third less for 1 to 32.
    """
    if not can_pack(dtype, device):
        return False
    return dtype == torch.bfloat16 or invariant or torch.backends.cpu.get_cpu_capability() != "AVX512"
