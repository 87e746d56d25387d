"""Launches of kernels that begin while the one queued before them ends."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch


def chained(tensor: torch.Tensor) -> dict[str, Any]:
    """Options of a launch on the tensor's device, for kernels that take `CHAINED`."""
    return {"CHAINED": True, "launch_pdl": True} if _is_able(tensor.device) else {"CHAINED": False}


@lru_cache
def _is_able(device: torch.device) -> bool:
    is_cuda = device.type == "cuda" and torch.version.hip is None
    return is_cuda and torch.cuda.get_device_capability(device) >= (9, 0)
