"""A drafter's matrices as 8-bit integers: half the size of bfloat16, for files that are published.

Each row of a matrix gets a scale of its own, max |w| / 127, and is rounded to the nearest integer; vectors and integers
stay as they are. Names, shapes and configuration are compressed-tensors' (`X` int8, `X_scale` [rows, 1], format
int-quantized, strategy channel), which `draftproof.drafters.learned.checkpoint` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

QUANTIZATION: Final[dict[str, Any]] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": [],
    "config_groups": {
        "group_0": {
            "targets": ["Linear", "Embedding"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
        }
    },
}
"""The key quantization_config of config.json."""


def to_eight_bit(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors, every floating-point matrix named `…weight` as int8 with its scales in float32.

    A row of zeros has the scale 1. Raises ValueError for values that are not finite.
    """
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and tensor.ndim == 2 and name.endswith("weight")):
            found[name] = tensor
            continue
        rows = tensor.float()
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(f"{name} holds NaN or infinite values")
        scale = rows.abs().amax(dim=1, keepdim=True) / 127.0
        scale[scale == 0.0] = 1.0
        found[name] = (rows / scale).round().to(torch.int8)
        found[f"{name}_scale"] = scale
    return found
