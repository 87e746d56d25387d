"""`target_probs`: rows' processed laws, written into the caller's buffer, for those who verify elsewhere."""

from __future__ import annotations

from typing import Any, Final

import torch

from draftproof.errors import ParameterError
from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.bounds import Bounding, bound_rows, rows_of, splits_of
from draftproof.kernels.common import common_arguments, sizes_of
from draftproof.kernels.counted import begins_well
from draftproof.kernels.exceptions import Changes, Exceptions
from draftproof.kernels.launch import Plan, require_triton
from draftproof.kernels.probs.counted import CountedProbs

_WRITTEN: Final = 4  # tiles that a program writes


class TargetProbsKernel:
    """`target_probs` for one shape: allocates nothing after it is made.

    Any later call's logits have the shape, type and strides that it was made with.
    """

    def __init__(
        self, logits: torch.Tensor, rows: Rows, vocab_size: int, *, num_exceptions: int = 0, tile: int | None = None
    ) -> None:
        """num_exceptions: `Changes.num_exceptions` of calls with changes. tile: tokens a tile, chosen if None."""
        require_triton()
        plan = Plan.of(logits, vocab_size, num_exceptions, tile)
        splits = splits_of(rows.num_rows, plan.num_plain)
        self._plan = plan = Plan.of(logits, vocab_size, num_exceptions, tile, splits)
        self._scratch = plan.scratch(logits.device)
        self._exceptions = Exceptions.empty(rows, num_exceptions, vocab_size, plan.tile, logits.device)
        self._rows = rows_of(rows.num_rows, logits.device)
        self._bounding = Bounding.of(plan, logits.device)
        self._counted = CountedProbs.of(plan, logits)

    def __call__(
        self,
        logits: torch.Tensor,
        rows: Rows,
        requests: Requests,
        out: torch.Tensor,
        *,
        allowed: torch.Tensor | None = None,
        changes: Changes | None = None,
    ) -> torch.Tensor:
        """Fills out[:, :vocab_size], returns faults [rows] int32; see `target_probs`."""
        from draftproof.kernels.device.read_kernel import read_kernel
        from draftproof.kernels.probs.triton import measure_kernel, write_kernel

        plan = self._plan
        if (
            out.dtype != torch.float32
            or out.ndim != 2
            or out.shape[0] != plan.num_rows
            or out.shape[1] < plan.vocab_size
            or out.stride(1) != 1
        ):
            given = f"{out.dtype} of shape {tuple(out.shape)}, strides {out.stride()}"
            allowed_out = f"float32 [{plan.num_rows}, >= {plan.vocab_size}], a row side by side"
            raise ParameterError("out", given, allowed_out)
        plain = allowed is None and changes is None and requests.top_p_alone
        if self._counted is not None and plain and begins_well(logits):
            self._counted.launch(logits, rows, requests, out, self._rows[0])
            return self._rows[0]
        common = common_arguments(plan, logits, rows, requests, allowed, changes, self._exceptions)
        sizes: dict[str, Any] = {"TILE": plan.tile, **common.flags}
        quads = plan.quads(logits)
        read_kernel[(plan.num_rows * plan.num_racers,)](
            logits, quads, logits.stride(0), quads.stride(0), *common.given[2:], self._scratch, plan.num_plain,
            plan.tiles_per_split, plan.vocab_size, plan.splits, TILES=plan.tiles, RACERS=plan.racers,
            PACKED=plan.packed, KIND=plan.kind, EVEN=plan.vocab_size % 4 == 0, RACE=False, MASS=requests.races,
            GROUPS=requests.lists, num_warps=1, **sizes, **common.of_read,
        )  # fmt: skip
        unfiltered = requests.unfiltered and not (requests.top_p_alone or requests.lists)
        measure_kernel[(plan.num_rows,)](
            *common.given, self._scratch, plan.num_tiles, plan.num_plain, plan.vocab_size, self._rows,
            self._bounding.bracket, TILES=plan.tiles, UNFILTERED=unfiltered, num_warps=1, **sizes, **plan.overlapping,
        )  # fmt: skip
        if not unfiltered:
            bound_rows(plan, rows, requests, common, self._scratch, self._rows, self._rows, self._bounding,
                       nodes=1, wanted=0)  # fmt: skip
        write_kernel[(plan.num_rows * -(-plan.num_tiles // _WRITTEN),)](
            *common.given, plan.num_tiles, plan.num_plain, plan.vocab_size, self._rows, out, out.stride(0),
            GROUP=_WRITTEN, num_warps=8, **sizes, **plan.overlapping,
        )  # fmt: skip
        return self._rows[0]


def target_probs(
    target_logits: torch.Tensor,
    rows: Rows,
    requests: Requests,
    out: torch.Tensor,
    *,
    vocab_size: int | None = None,
    allowed: torch.Tensor | None = None,
    changes: Changes | None = None,
) -> torch.Tensor:
    """The law of each row under its request's parameters, into `out`; `TargetProbsKernel` once, for one call.

    target_logits: [rows, >= vocab_size] bf16, fp16 or fp32, on a GPU. out: [rows, >= vocab_size] float32, filled up to
    vocab_size: filtered tokens are exactly 0, and a greedy row has 1 at its argmax (the lowest id on ties). A row
    with a fault is NaN throughout. rows, requests, allowed, changes: as in `verify_keyed`.
    Returns faults [rows] int32: 0, or 1 for NaN or an infinite logit, 2 where every token is masked.
    Raises ParameterError for logits or a buffer of another shape or type.
    """
    size, num_exceptions = sizes_of(target_logits, rows, vocab_size, changes)
    kernel = TargetProbsKernel(target_logits, rows, size, num_exceptions=num_exceptions)
    return kernel(target_logits, rows, requests, out, allowed=allowed, changes=changes)
