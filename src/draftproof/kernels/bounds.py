"""The launches that find rows' bounds."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.common import Common
from draftproof.kernels.launch import Plan

_PROGRAMS: Final = 1056  # 8 programs of four warps on each of 132 processors
_READERS: Final = 4224  # 32 programs of one warp on each of 132 processors
_WEIGHERS: Final = 2112  # 16 such, which need more registers
_ROOM: Final = 4096
_WIDTH: Final = 16  # as device/edges.py has it
_BUCKETS: Final = 512  # as device/buckets.py has them
_BOUND_WARPS: Final = 8
_SAMPLE_WARPS: Final = 8
_FEW_SAMPLES: Final = 128  # of more rows such programs are too many to be there while rows are read
_EARLY: Final = 512  # rows whose samples are counted while rows are still read: as many programs are there at once


def rows_of(num_rows: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Scratch for rows: faults, verdicts, z bounds, id bounds, largest logits, totals, masses, least masses."""
    int32, float32, float64 = torch.int32, torch.float32, torch.float64
    types = (int32, int32, float32, int32, float32, float64, float64, float64)
    return tuple(torch.empty(num_rows, dtype=dtype, device=device) for dtype in types)


class Bounding(NamedTuple):
    """Scratch for rows' brackets, as device/bound_kernels.py has it.

    room: tokens that a row's list holds. early: whether samples are counted before it is known which rows are wanted.
    """

    bracket: tuple[torch.Tensor, ...]
    room: int
    early: bool

    @classmethod
    def of(cls, plan: Plan, device: torch.device) -> Bounding:
        """For the rows of `plan`."""
        n, room = plan.num_rows, _ROOM

        def of(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        edges, sums = of(n, _WIDTH, dtype=torch.float32), of(n, _WIDTH, dtype=torch.int64)
        listed, masses = of(n, room, dtype=torch.float32), of(n, _BUCKETS, dtype=torch.int64)
        return cls((edges, sums, listed, of(n, room), masses, of(1), of(n)), room, n <= _EARLY)


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
    """Launches what finds the bounds and kept masses of measured rows. wanted: as in device/wanted.py."""
    from draftproof.kernels.device.bound_kernels import bound_kernel, list_kernel, sample_kernel, weigh_kernel

    n, top_p = plan.num_rows, requests.top_p_alone
    shape = (plan.num_tiles, plan.num_plain, plan.vocab_size)
    state = (rows.offsets, row_state, node_state, bounding.bracket)
    sizes: dict[str, Any] = {"TILE": plan.tile, "TILES": plan.tiles, "NODES": nodes, "WANTED": wanted, **common.flags}
    sizes |= plan.overlapping
    limits: dict[str, int] = {}
    if top_p:
        warps = _SAMPLE_WARPS if n <= _FEW_SAMPLES or not bounding.early else _SAMPLE_WARPS // 2
        sample_kernel[(n,)](
            *common.given, *shape, *state, EARLY=bounding.early, num_warps=warps, **plan.at_most(128), **sizes
        )
        options = {"TILE": plan.tile, "num_warps": 1, **common.flags, **plan.overlapping}
        logits, stride, row_params, _, masks, exceptions = common.given
        given = (logits, stride, row_params, masks, exceptions, *shape, bounding.bracket)
        most = n * plan.num_tiles
        weigh_kernel[(min(_WEIGHERS, most),)](*given, **plan.at_most(128), **options)
        list_kernel[(min(_READERS, most),)](*given, ROOM=bounding.room, **options)
        limits = plan.at_most(128)
    bound_kernel[(n,)](
        *common.given, scratch, *shape, *state, ROOM=bounding.room, TOP_P=top_p, LISTS=requests.lists,
        num_warps=_BOUND_WARPS if top_p else 1, **limits, **plan.of_bound, **sizes,
    )  # fmt: skip


def splits_of(num_rows: int, num_tiles: int) -> int:
    """How many programs of one warp read each of `num_rows` rows: such that the last turn of programs is a full one."""

    def cost(splits: int) -> float:
        tiles = -(-num_tiles // splits)
        turns = -(-num_rows * -(-num_tiles // tiles) // _READERS)
        return turns * (tiles + 0.5)

    return min(range(1, num_tiles + 1), key=cost)


def splits_of_pairs(num_rows: int, num_tiles: int) -> int:
    """The same of rows beside which another law's are read, which takes registers, so fewer programs are there at once:
    as many for each law as would fill a turn were best by measurement, of 2 to 7 tiles each."""
    return max(min(-(-_READERS // num_rows), -(-num_tiles // 2)), -(-num_tiles // 7))


def splits_alone(num_tiles: int) -> int:
    """How many programs of one warp read each of the rows of one law that aren't raced: three tiles each."""
    return -(-num_tiles // 3)


def programs_of(num_rows: int, num_tiles: int) -> int:
    """How many programs of four warps share whichever of `num_rows` rows are wanted."""
    return min(_PROGRAMS, num_rows * max(1, num_tiles // 2))


def parts_of(count: int, num_tiles: int, most: int = 16, least_tiles: int = 4) -> int:
    """How many programs share a row, a power of two, where `count` rows are looked at.

    most: of them. least_tiles: that each of them shall have, where there are as many.
    """
    wanted = max(1, _PROGRAMS // max(count, 1))
    return max(1, min(most, 1 << (wanted - 1).bit_length(), 1 << max(num_tiles // least_tiles, 1).bit_length() - 1))
