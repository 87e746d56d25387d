"""Launches that bound rows by how many tokens have each logit (cuda/law.cuh): bfloat16 has few values."""

from __future__ import annotations

import ctypes
import warnings
from typing import Any, Final

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.launch import Plan
from draftproof.kernels.nvrtc import Kernel, available, compiled

_TILE: Final = 1024
_COUNTS: Final = 8 * 4096  # bytes, as cuda/row.cuh has them
_PROCESSOR: Final = 228 * 1024  # bytes of shared memory
_BESIDE: Final = 4096  # bytes that kernels declare, at most, and what each program costs
_MOST: Final = 216 * 1024
_CLUSTERS: Final = (8, 4, 2)
_ROUNDS: Final = 31  # as cuda/ties.cuh allows


def counted_kernel(
    source: str, name: str, plan: Plan, logits: torch.Tensor, draft: torch.Tensor | None, draft_size: int
) -> tuple[Kernel, int] | None:
    """(the kernel, how many programs it needs) for the rows of `plan`, or None for rows that it isn't made for, and,
    with a warning, where its source doesn't compile.

    draft: the draft's logits, None where none are read. draft_size: its vocabulary.
    """
    if plan.num_exceptions or plan.tile != _TILE or not available(logits.device) or not fits(logits, plan.vocab_size):
        return None
    if draft is not None and not fits(draft, draft_size):
        return None
    size = plan.vocab_size if draft is None else draft_size
    shape = shape_of(plan.num_rows, max(plan.vocab_size, size), processors_of(logits.device))
    if shape is None:
        return None
    cluster, threads, shared = shape
    resident = 2 if threads == 512 and 2 * (shared + _BESIDE) <= _PROCESSOR else 1
    defined = {"V": plan.vocab_size, "DRAFT_V": size, "TILES": plan.tiles, "LAW": int(draft is not None),
               "CLUSTER": cluster, "THREADS": threads, "RESIDENT": resident}  # fmt: skip
    try:
        kernel = compiled(source, name, logits.device, threads, shared, tuple(defined.items()))
    except RuntimeError as error:
        warnings.warn(
            f"Triton's kernels are taken, which are slower under top-p: {error}", RuntimeWarning, stacklevel=2
        )
        return None
    return kernel, plan.num_rows * cluster


def shape_of(num_rows: int, vocab_size: int, num_processors: int) -> tuple[int, int, int] | None:
    """(programs that share a row, their threads, bytes of shared memory each); None where a row is too long.

    As many programs as the GPU has processors for, since a row's share then is the shortest.
    """
    tiles = -(-vocab_size // _TILE)
    fitting = []
    for cluster in _CLUSTERS:
        share, threads = -(-tiles // cluster), 1024 if cluster == 2 else 512
        shared = 2 * _TILE * share + _COUNTS
        if shared <= _MOST and -(-share * _TILE // (8 * threads)) <= _ROUNDS:
            fitting.append((cluster, threads, shared))
    return next((shape for shape in fitting if num_rows * shape[0] <= num_processors), fitting[-1] if fitting else None)


def fits(logits: torch.Tensor, vocab_size: int) -> bool:
    """Whether rows are of a type with few values, and can be copied by 16 bytes."""
    return (
        logits.dtype == torch.bfloat16
        and logits.stride(0) % 8 == 0
        and begins_well(logits)
        and -(-vocab_size // 8) * 8 <= logits.shape[1]
    )


def begins_well(logits: torch.Tensor | None) -> bool:
    """Whether the first row can be copied so: of each call's logits, whose memory may be another's. None: no logits."""
    return logits is None or logits.data_ptr() % 16 == 0


def row_arguments(logits: torch.Tensor, rows: Rows, requests: Requests) -> tuple[Any, ...]:
    """What each of these kernels is given first."""
    return (logits, ctypes.c_longlong(logits.stride(0)), rows.request, requests.temperature, requests.top_k,
            requests.top_p, requests.min_score)  # fmt: skip


def processors_of(device: torch.device) -> int:
    """How many processors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count
