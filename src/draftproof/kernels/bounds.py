"""The launches that find rows' bounds."""

from __future__ import annotations

from typing import Any, Final

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.common import Common
from draftproof.kernels.launch import Plan

_PROGRAMS: Final = 1056  # 8 programs of four warps on each of 132 processors
_LISTED: Final = 8192  # tokens of a row that a bracket may hold; a sample's holds 3,000 to 7,000
_BRACKET_WARPS: Final = 4
_BOUND_WARPS: Final = 4


def rows_of(num_rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Scratch for rows: faults, verdicts, z bounds, id bounds, largest logits, totals, masses."""
    int32, float32, float64 = torch.int32, torch.float32, torch.float64
    types = (int32, int32, float32, int32, float32, float64, float64)
    return tuple(torch.empty(num_rows, dtype=dtype, device=device) for dtype in types)


def brackets_of(plan: Plan, parts: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Scratch for top-p's brackets: edges, numbers of tokens between them, masses above, those tokens' logits, ids."""
    size, num_rows = _listed(plan), plan.num_rows
    return (
        torch.empty((num_rows, 2), dtype=torch.float32, device=device),
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty((num_rows, parts), dtype=torch.int64, device=device),
        torch.empty((num_rows, size), dtype=torch.float32, device=device),
        torch.empty((num_rows, size), dtype=torch.int32, device=device),
    )


def _listed(plan: Plan) -> int:
    return _LISTED if plan.vocab_size > _LISTED else plan.list_size


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
    from draftproof.kernels.device.bound_kernels import bound_kernel, bracket_kernel, collect_kernel

    head = (
        *common.given, scratch, plan.num_tiles, plan.num_plain, plan.vocab_size, rows.offsets, row_state, draft_faults,
        brackets,
    )  # fmt: skip
    sizes: dict[str, Any] = {"TILE": plan.tile, "NODES": nodes, "WANTED": wanted, **common.flags, **plan.overlapping}
    lists: dict[str, Any] = {"TILES": plan.tiles, "SIZE": _listed(plan), "PARTS": parts}
    if requests.top_p_alone:
        bracket_kernel[(plan.num_rows,)](*head, num_warps=_BRACKET_WARPS, **sizes)
        collect_kernel[(plan.num_rows * parts,)](*head, GROUP=1, num_warps=_BRACKET_WARPS, **lists, **sizes)
    bound_kernel[(plan.num_rows,)](
        *head, GROUP=max(1, plan.group // 2), LIST=plan.list_size, KEY_SHIFT=plan.key_shift,
        TOP_P=requests.top_p_alone, LISTS=requests.lists, num_warps=_BOUND_WARPS, **lists, **sizes,
    )  # fmt: skip


def parts_of(count: int, num_tiles: int) -> int:
    """How many programs share a row, a power of two, where `count` rows are looked at."""
    wanted = max(1, _PROGRAMS // max(count, 1))
    return max(1, min(16, 1 << (wanted - 1).bit_length(), 1 << max(num_tiles // 4, 1).bit_length() - 1))
