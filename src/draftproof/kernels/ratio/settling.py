"""The launches of `rejection` under top-p alone that find no row's bound: two after the read (device/between.py)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from draftproof.kernels.bounds import parts_of
from draftproof.kernels.launch import Plan
from draftproof.kernels.verdict import KernelVerdict

_MOST_ROWS: Final = 256
_MOST_OF_POINTS: Final = 1024  # of rows whose drafts are point masses
_AT_ONCE: Final = 528  # programs of four warps, four on each of 132 processors
_RACES: Final = 64  # programs that race one request, at most
_RACE_WARPS: Final = 4
_RACE_REGISTERS: Final = 128
_PARTS: Final = 8  # of a row's sample, and its buckets, as device/samples.py has them
_BUCKETS: Final = 256


class Settling(NamedTuple):
    """Scratch, and how the race is cut up.

    sample: as device/samples.py has it. contenders: as device/contenders.py has them. num_splits, splits: programs that
    race a request, and a power of two that is no less.
    """

    sample: tuple[torch.Tensor, ...]
    contenders: tuple[torch.Tensor, ...]
    num_splits: int
    splits: int

    @classmethod
    def of(cls, plan: Plan, num_requests: int, ended: torch.Tensor, *, points: bool) -> Settling | None:
        """For the rows of `plan`; None for more of them than it pays for. ended: [requests] int32, of the test.

        points: whether drafts are point masses.
        """
        if plan.num_rows > (_MOST_OF_POINTS if points else _MOST_ROWS) or plan.num_exceptions:
            return None
        most = min(_RACES, 1 << max(_AT_ONCE // max(num_requests, 1), 1).bit_length() - 1)
        share = -(-plan.num_tiles // parts_of(num_requests, plan.num_tiles, most=most, least_tiles=2))
        num_splits = -(-plan.num_tiles // share)
        splits = 1 << (num_splits - 1).bit_length()

        def of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=ended.device)

        one, two = (num_requests, splits), (num_requests, 2, splits)
        sample = of(plan.num_rows, _PARTS, _BUCKETS, dtype=torch.int32), of(plan.num_rows, 2)
        contenders = (
            of(*two), of(*two), of(*two), of(*two, dtype=torch.int32), of(*one), ended,
            of(num_requests, 8, splits, dtype=torch.int64),
        )  # fmt: skip
        return cls(sample, contenders, num_splits, splits)

    @staticmethod
    def programs(sample: tuple[torch.Tensor, ...] | None) -> int:
        """How many programs of the read count each row's sample."""
        return 0 if sample is None else _PARTS

    def launch(
        self,
        plan: Plan,
        draft_plan: Plan,
        head: tuple[Any, ...],
        tests: tuple[Any, ...],
        state: tuple[Any, ...],
        verdict: KernelVerdict,
        *,
        nodes: int,
        sizes: dict[str, Any],
    ) -> None:
        """Launches what follows the read. head: what rows, requests and drafts are. tests: what a test takes of the
        draft's law and of masses before tokens. state: of rows, of nodes, edges, residual masses. sizes: options."""
        from draftproof.kernels.ratio.device.between import race_between_kernel
        from draftproof.kernels.ratio.device.bracketed import bracketed_test_kernel

        programs, (rows, row_nodes, bracket, residual_masses) = 4 * plan.num_rows, state
        # More programs than are there at once end sooner by one warp each. A law of probabilities is summed by a test.
        warps = 1 if programs > _AT_ONCE and sizes["LAW"] != 2 else 4
        bracketed_test_kernel[(programs,)](
            *head, *tests, rows, row_nodes, bracket, residual_masses, self.contenders[5], self.sample, plan.num_rows,
            DRAFT_TILES=draft_plan.tiles, DRAFT_TILE=draft_plan.tile, DRAFT_GROUP=draft_plan.group, SUMMED=1024,
            LIST=plan.list_size, KEY_SHIFT=plan.key_shift, num_warps=warps, **sizes,
        )  # fmt: skip
        race_between_kernel[(self.num_splits * verdict.faults.shape[0],)](
            *head, tests[0], rows, row_nodes, bracket, self.contenders,
            (verdict.token_ids, verdict.accepted_rows, verdict.num_accepted, verdict.faults), self.num_splits,
            NODES=nodes, SPLITS=self.splits, LIST=plan.list_size, KEY_SHIFT=plan.key_shift, num_warps=_RACE_WARPS,
            **plan.at_most(_RACE_REGISTERS), **sizes,
        )  # fmt: skip
