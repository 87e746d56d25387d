"""Which of torchrun's processes this is, and the device that is its own."""

from __future__ import annotations

import os

import torch


def rank_and_world() -> tuple[int, int]:
    """(0, 1) where torchrun hasn't started it."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def own_device(device: str) -> str:
    """A bare `cuda` means, of several processes on a machine, the GPU of this one's local rank; it becomes current."""
    local_rank = os.environ.get("LOCAL_RANK")
    if device != "cuda" or local_rank is None:
        return device
    torch.cuda.set_device(int(local_rank))
    return f"cuda:{local_rank}"
