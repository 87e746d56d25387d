"""Capturing calls as a CUDA graph, undisturbed by the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch


def captured(run: Callable[[], None], pool: Any = None) -> Any:
    """The graph of what `run` does. It has run before: compiling and making workspaces can't be captured.

    pool: of `torch.cuda.graph_pool_handle`, shared by graphs that never replay at once. After an error it is still
    recording, as PyTorch leaves it, so it can't be used again.

    No garbage is collected meanwhile. Graphs of a target that nobody holds any more are found by the collector, which
    may begin anywhere, and CUDA forbids destroying a graph during any capture: the capture would be lost.

    Raises RuntimeError where `run` waits for the device, torch.OutOfMemoryError.
    """
    cuda: Any = torch.cuda
    graph = cuda.CUDAGraph()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with cuda.graph(graph, pool=pool):
            run()
    finally:
        if was_enabled:
            gc.enable()
    return graph
