"""Linear layers for narrow forwards on a CPU: oneDNN's kernel over weights packed once.

A forward of 1 to 32 tokens is bound by reading the weights. The general matrix product repacks or rereads them for a
few rows: on a CPU with AVX2 two rows cost it twice as much as one, where oneDNN's kernel over weights that are laid
out for it takes a tenth more (benchmarks/forward_width.py prints the table). Its sum over the input features also
runs in one order whatever the number of rows, so a row's result has the same bits at any width (`invariant.py`
checks this on the machine at hand and doesn't take it for granted).

The swap is for plain steps and verified steps alike: a target has one kind of linear layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# The number of rows that the packed layout is chosen for. Packing for 1 row takes another path than for more.
PACKED_FOR_ROWS = 16


class PackedLinear(nn.Module):
    """`torch.nn.Linear` over a packed weight: input [..., in_features] to [..., out_features], no gradients."""

    def __init__(self, weight: torch.Tensor, bias: nn.Parameter | None) -> None:
        """weight: [out_features, in_features]."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_FOR_ROWS)
        self.bias = bias

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(features, self.packed, self.bias, "none", [], "")
        return out

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, packed"


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Is there a packed kernel whose bits don't depend on the number of rows?

    Only float32 qualifies: in bfloat16 the packed kernel sums one row in another order than several, while torch's
    own product doesn't (Xeon with AMX, torch 2.11).
    """
    onednn: Any = torch.backends.mkldnn
    return device.type == "cpu" and dtype == torch.float32 and bool(onednn.is_available())


def should_pack(dtype: torch.dtype, device: torch.device, invariant: bool) -> bool:
    """Does packing pay? A rule of the machine alone, never a measurement: the choice decides the last bits.

    Without AVX-512 the packed product takes 10 to 45 % less time at every width. With it, torch's own is as fast
    from 2 rows on and 15 % faster for one, so packing is left to invariant execution, which needs it.
    """
    return can_pack(dtype, device) and (invariant or torch.backends.cpu.get_cpu_capability() != "AVX512")


def pack_linears(model: Any) -> int:
    """Replace every `torch.nn.Linear` of the model by a `PackedLinear`; returns how many were replaced.

    The replaced weights are freed, so the model can't be saved or trained afterwards. A weight that is also used
    elsewhere (an embedding tied to the output layer) stays where it is used.
    """
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child.weight, child.bias))
                count += 1
    return count
