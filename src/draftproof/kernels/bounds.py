"""The launches that find rows' bounds."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.common import Common
from draftproof.kernels.launch import Plan

_PROGRAMS: Final = 1056  # 8 programs of four warps on each of 132 processors
_READERS: Final = 4224  # 32 programs of one warp on each of 132 processors
_ROUNDS: Final = 3  # as device/top_p.py has them, its edges and its masses
_EDGES: Final = 8
_MASSES: Final = 4
_ROOM: Final = 4096
_MOST_PARTS: Final = 64
_BOUND_WARPS: Final = 8


def rows_of(num_rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Scratch for rows: faults, verdicts, z bounds, id bounds, largest logits, totals, masses."""
    int32, float32, float64 = torch.int32, torch.float32, torch.float64
    types = (int32, int32, float32, int32, float32, float64, float64)
    return tuple(torch.empty(num_rows, dtype=dtype, device=device) for dtype in types)


class Bounding(NamedTuple):
    """Scratch for what finds rows' bounds, as device/bound_kernels.py has it. room: tokens that a row's list holds."""

    asked: tuple[torch.Tensor, ...]
    brackets: tuple[torch.Tensor, ...]
    room: int

    @classmethod
    def of(cls, plan: Plan, device: torch.device) -> Bounding:
        """For the rows of `plan`."""

        def of(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        n = plan.num_rows
        room = min(_ROOM, 1 << (plan.vocab_size - 1).bit_length())
        brackets = (
            of(_ROUNDS, n, _EDGES, dtype=torch.float32), of(_ROUNDS, n, dtype=torch.float64),
            of(_ROUNDS, n, _MASSES, dtype=torch.int64), of(n), of(n), of(n, room, dtype=torch.float32), of(n, room),
        )  # fmt: skip
        return cls((of(3), of(3, n), of(n)), brackets, room)


def bound_rows(
    plan: Plan,
    rows: Rows,
    requests: Requests,
    common: Common,
    scratch: tuple[torch.Tensor, ...],
    row_state: tuple[torch.Tensor, ...],
    node_state: tuple[torch.Tensor, ...],
    bounding: Bounding,
    *,
    nodes: int,
    wanted: int,
) -> None:
    """Launches what finds the bounds and kept masses of measured rows. wanted: as in device/bound_kernels.py."""
    from draftproof.kernels.device.bound_kernels import (
        ask_kernel,
        bound_kernel,
        collect_kernel,
        sample_kernel,
        weigh_kernel,
    )

    n, overlapping = plan.num_rows, plan.overlapping
    asked, brackets, top_p = bounding.asked, bounding.brackets, requests.top_p_alone
    head = (*common.given, scratch, plan.num_tiles, plan.num_plain, plan.vocab_size)
    sizes: dict[str, Any] = {"TILE": plan.tile, **common.flags, **overlapping}
    walk: dict[str, Any] = {"NODES": nodes, "WANTED": wanted}
    programs = min(_PROGRAMS, n * min(_MOST_PARTS, plan.num_tiles))
    group = max(1, plan.group // 2)
    if top_p:
        sample_kernel[(n,)](
            *head, rows.offsets, row_state, node_state, asked, brackets, n, num_warps=_BOUND_WARPS, **walk, **sizes
        )
        weigh_kernel[(programs,)](*head, row_state, asked, brackets, 0, n, TILES=plan.tiles, num_warps=4, **sizes)
        ask_kernel[(rows.num_requests if wanted else n,)](
            *common.given[2:4], rows.offsets, row_state, node_state, asked, brackets, n, num_warps=1,
            OVERLAP=plan.overlaps, **walk, **overlapping,
        )  # fmt: skip
        for turn in range(1, _ROUNDS):
            weigh_kernel[(programs,)](
                *head, row_state, asked, brackets, turn, n, TILES=plan.tiles, num_warps=4, **sizes
            )
        collect_kernel[(programs,)](
            *head, row_state, asked, brackets, n, TILES=plan.tiles, GROUP=group, ROOM=bounding.room, num_warps=4,
            **sizes,
        )  # fmt: skip
    bound_kernel[(n,)](
        *head, rows.offsets, row_state, node_state, asked, brackets, n, TILES=plan.tiles, GROUP=group,
        LIST=plan.list_size, ROOM=bounding.room, KEY_SHIFT=plan.key_shift, TOP_P=top_p, LISTS=requests.lists,
        num_warps=_BOUND_WARPS, **walk, **sizes,
    )  # fmt: skip


def splits_of(num_rows: int, num_tiles: int, *, pairs: bool = False) -> int:
    """How many programs of one warp read each of `num_rows` rows: such that the last turn of programs is a full one.

    pairs: another law's rows are read beside them, which takes registers, so fewer programs are there at once; as many
    for each law as would fill a turn were best by measurement.
    """
    if pairs:
        return -(-_READERS // num_rows)

    def cost(splits: int) -> float:
        tiles = -(-num_tiles // splits)
        turns = -(-num_rows * -(-num_tiles // tiles) // _READERS)
        return turns * (tiles + 0.5)

    return min(range(1, num_tiles + 1), key=cost)


def parts_of(count: int, num_tiles: int, most: int = 16, least_tiles: int = 4) -> int:
    """How many programs share a row, a power of two, where `count` rows are looked at.

    most: of them. least_tiles: that each of them shall have, where there are as many.
    """
    wanted = max(1, _PROGRAMS // max(count, 1))
    return max(1, min(most, 1 << (wanted - 1).bit_length(), 1 << max(num_tiles // least_tiles, 1).bit_length() - 1))
