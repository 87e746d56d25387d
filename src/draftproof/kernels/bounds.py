"""The launches that find rows' bounds."""

from __future__ import annotations

from typing import Any, Final

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.common import Common
from draftproof.kernels.launch import Plan

ROUNDS: Final = 3
"""Rounds that narrow top-p's bracket, by 8 each: what is left of it is a 512th."""
_PROGRAMS: Final = 1056  # 8 programs of four warps on each of 132 processors
_NUM_PIVOTS: Final = 8
_BOUND_WARPS: Final = 4


def rows_of(num_rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Scratch for rows: faults, verdicts, z bounds, id bounds, largest logits, totals, masses."""
    int32, float32, float64 = torch.int32, torch.float32, torch.float64
    types = (int32, int32, float32, int32, float32, float64, float64)
    return tuple(torch.empty(num_rows, dtype=dtype, device=device) for dtype in types)


def brackets_of(num_rows: int, parts: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Scratch for top-p's brackets: edges, masses at and above them, pivots' masses, how many tokens parts list."""
    return (
        torch.empty((ROUNDS + 1, num_rows, 2), dtype=torch.float32, device=device),
        torch.empty((ROUNDS + 1, num_rows), dtype=torch.float64, device=device),
        torch.empty((ROUNDS, num_rows, parts, _NUM_PIVOTS), dtype=torch.int64, device=device),
        torch.empty((num_rows, parts), dtype=torch.int32, device=device),
    )


def bound_rows(
    plan: Plan,
    rows: Rows,
    requests: Requests,
    common: Common,
    scratch: tuple[torch.Tensor, ...],
    row_state: tuple[torch.Tensor, ...],
    draft_faults: torch.Tensor,
    brackets: tuple[torch.Tensor, ...],
    *,
    nodes: int,
    parts: int,
    wanted: int,
) -> None:
    """Launches what finds the bounds and kept masses of measured rows. wanted: as in device/bound_kernels.py."""
    from draftproof.kernels.device.bound_kernels import bound_kernel, collect_kernel, narrow_kernel

    head = (
        *common.given, scratch, plan.num_tiles, plan.num_plain, plan.vocab_size, rows.offsets, row_state, draft_faults,
        brackets,
    )  # fmt: skip
    sizes: dict[str, Any] = {
        "TILE": plan.tile, "TILES": plan.tiles, "NODES": nodes, "PARTS": parts, "WANTED": wanted, **common.flags,
        **plan.overlapping,
    }  # fmt: skip
    rounds = ROUNDS if requests.top_p_alone else 0
    for turn in range(rounds):
        narrow_kernel[(plan.num_rows * parts,)](*head, turn, plan.num_rows, num_warps=4, **sizes)
    group = max(1, plan.group // 2)
    if rounds:
        collect_kernel[(plan.num_rows * parts,)](
            *head, rounds, plan.num_rows, GROUP=group, LIST=plan.list_size, num_warps=4, **sizes
        )
    bound_kernel[(plan.num_rows,)](
        *head, rounds, plan.num_rows, GROUP=group, LIST=plan.list_size, KEY_SHIFT=plan.key_shift,
        TOP_P=requests.top_p_alone, LISTS=requests.lists, num_warps=_BOUND_WARPS, **sizes,
    )  # fmt: skip


def parts_of(count: int, num_tiles: int, most: int = 16, least_tiles: int = 4) -> int:
    """How many programs share a row, a power of two, where `count` rows are looked at.

    most: of them. least_tiles: that each of them shall have, where there are as many.
    """
    wanted = max(1, _PROGRAMS // max(count, 1))
    return max(1, min(most, 1 << (wanted - 1).bit_length(), 1 << max(num_tiles // least_tiles, 1).bit_length() - 1))
