"""`verify_keyed` and `draw`: the race on a GPU, for drafts and for plain decoding, by one code with one result."""

from __future__ import annotations

from typing import Any, Final

import torch

from draftproof.errors import ParameterError
from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.common import common_arguments, sizes_of
from draftproof.kernels.exceptions import Changes, Exceptions
from draftproof.kernels.launch import Plan, require_triton
from draftproof.kernels.verdict import KernelVerdict

_SUM_WARPS: Final = 4  # of programs that sum a part of a row; others have one
_SUM_TOKENS: Final = 1024  # looked at together
_SUM_PROGRAMS: Final = 2048  # where rows are picked and summed by one launch
_SUM_PARTS: Final = (16, 64)  # of rows of which few are summed: of many rows, and of few
_SUMMED: Final = 8192  # parts of all rows, where rows are neither many nor few
_SUMMERS: Final = 2112  # programs that sum rows of which few are summed, at most: four warps, launched at 4 ns each
_AT_ONCE: Final = 16  # rows that are picked and summed by one launch; of more, few are summed
_WALK_WARPS: Final = 8
_READERS: Final = 4864  # programs of one warp, some more than 132 processors take at once
_LEAST_TILES: Final = 6  # that a program reads: a race is finished at the cost of one or two tiles more
_REGISTERS: Final = 80  # of programs that read under changes, at most
_LISTERS: Final = 40960  # programs that read rows of which none is raced, of two tiles or more
_PICKED_BY_WALK: Final = 1024  # splits of a request's rows that a walk looks at itself


class KeyedKernel:
    """`verify_keyed` for one shape: owns its scratch and outputs, allocates nothing after it is made.

    logits: [rows, >= vocab_size] bf16, fp16 or fp32; any later call's logits have this shape, type and strides.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        rows: Rows,
        vocab_size: int,
        *,
        num_exceptions: int = 0,
        tile: int | None = None,
        splits: int | None = None,
    ) -> None:
        """num_exceptions: `Changes.num_exceptions` of calls with changes. tile: tokens a tile, splits: programs that
        read a row; chosen if None."""
        require_triton()
        plan = Plan.of(logits, vocab_size, num_exceptions, tile)
        splits = splits or read_splits(plan.num_rows, plan.num_plain)
        self._plan = Plan.of(logits, vocab_size, num_exceptions, tile, splits)
        self._tiles_to_list = max(2, -(-plan.num_plain * plan.num_rows // _LISTERS))
        device = logits.device
        self._exceptions = Exceptions.empty(rows, num_exceptions, vocab_size, self._plan.tile, device)
        plain = torch.empty_like(self._exceptions.logits)
        to_sum = torch.empty(4 + 4 * rows.num_rows, dtype=torch.int32, device=device)
        masses = torch.empty((rows.num_rows, 4), dtype=torch.int64, device=device)
        self._scratch = (*self._plan.scratch(device), to_sum, masses, plain)
        nodes = 1 << max(rows.most - 1, 0).bit_length()
        self._nodes = nodes
        ints = [torch.empty(rows.num_rows, dtype=torch.int32, device=device) for _ in range(5)]
        wanted = torch.empty(rows.num_rows, dtype=torch.float64, device=device)
        self._parts = sum_parts(rows.num_rows, self._plan.tiles)
        of_tokens = torch.empty((rows.num_rows, 3), dtype=torch.float32, device=device)
        reference = torch.empty(rows.num_rows, dtype=torch.float32, device=device)
        self._drawn = (*ints[:3], wanted, *ints[3:], of_tokens, torch.empty_like(wanted), reference)
        self._verdict = KernelVerdict.empty(rows, nodes, device)

    def __call__(
        self,
        logits: torch.Tensor,
        rows: Rows,
        requests: Requests,
        *,
        allowed: torch.Tensor | None = None,
        changes: Changes | None = None,
    ) -> KernelVerdict:
        """Runs the kernels. allowed: [rows, ceil(V / 32)] int32, a set bit for each token that may be drawn.

        changes: penalties and bias, of as many special tokens as the kernel was made for.
        """
        from draftproof.kernels.device.read_kernel import read_kernel
        from draftproof.kernels.keyed.device.pick import pick_kernel
        from draftproof.kernels.keyed.device.sum import sum_kernel
        from draftproof.kernels.keyed.device.walk import walk_kernel

        plan, verdict = self._plan, self._verdict
        common = common_arguments(plan, logits, rows, requests, allowed, changes, self._exceptions)
        given = common.given
        sizes: dict[str, Any] = {"TILE": plan.tile, "TILES": plan.tiles, "RACERS": plan.racers, **common.flags}
        kind: dict[str, Any] = {"PACKED": plan.packed, "KIND": plan.kind, "EVEN": plan.vocab_size % 4 == 0}
        quads = plan.quads(logits)
        special = plan.num_exceptions > 0
        loose = special and (requests.lists or requests.top_p_alone)
        changed = special or allowed is not None
        limits = plan.at_most(_REGISTERS) if changed and requests.races else {}
        tiles_per_split = plan.tiles_per_split if requests.races else self._tiles_to_list
        splits = -(-plan.num_plain // tiles_per_split)
        read_kernel[(plan.num_rows * (splits + special),)](
            logits, quads, logits.stride(0), quads.stride(0), *given[2:], self._scratch, plan.num_plain,
            tiles_per_split, plan.vocab_size, splits, RACE=requests.races, MASS=requests.top_p_alone,
            GROUPS=requests.lists, LOOSE=loose, SUMS=requests.top_p_alone, num_warps=1, **kind, **sizes,
            **common.of_read, **limits,
        )  # fmt: skip
        shared = (
            *given, self._scratch, self._drawn, plan.num_tiles, plan.num_plain, plan.num_racers, plan.vocab_size,
        )  # fmt: skip
        sums, parts = requests.top_p_alone, self._parts if requests.top_p_alone else 1
        filters = requests.top_p_alone or requests.lists
        walk_picks = requests.unfiltered and not filters and self._nodes * plan.racers <= _PICKED_BY_WALK
        if not walk_picks:
            few = plan.num_rows <= _AT_ONCE
            at_once = sums and few
            summing: dict[str, Any] = {
                "GROUP": min(max(1, _SUM_TOKENS // plan.tile), plan.tiles // parts), "PARTS": parts, **sizes,
                **plan.overlapping,
            }  # fmt: skip
            filled = -(-plan.num_tiles // (plan.tiles // parts))  # the others have no tile
            pick_kernel[(plan.num_rows * (filled if at_once else 1),)](
                *shared, rows.offsets, LIST=plan.list_size, KEY_SHIFT=plan.key_shift, TOP_P=requests.top_p_alone,
                LISTS=requests.lists, RACED=requests.races, SUMS=at_once, LOOSE=special and requests.lists,
                num_warps=_SUM_WARPS if at_once else 1, **kind, **summing,
            )  # fmt: skip
            if sums and not at_once:
                sum_kernel[(min(-(-plan.num_rows * filled // 2), _SUMMERS),)](
                    *shared, (rows.drafted, rows.parents, rows.ancestors), rows.ancestors.shape[1],
                    NODES=self._nodes, TREE=rows.is_tree, num_warps=_SUM_WARPS, **summing,
                )  # fmt: skip
        walk_kernel[(rows.num_requests,)](
            *shared, (rows.offsets, rows.drafted, rows.parents),
            (verdict.token_ids, verdict.accepted_rows, verdict.num_accepted, verdict.faults), GROUP=plan.group,
            KEY_SHIFT=plan.key_shift, FILTERS=filters, SUMS=sums, NODES=self._nodes,
            TREE=rows.is_tree, PICKS=walk_picks, num_warps=_WALK_WARPS, **sizes, **plan.overlapping,
        )  # fmt: skip
        return verdict


def read_splits(num_rows: int, num_tiles: int) -> int:
    """How many programs read a row, at most: some more than the processors take at once, of six tiles or more each."""
    return min(-(-_READERS // num_rows), -(-num_tiles // _LEAST_TILES))


def sum_parts(num_rows: int, tiles: int) -> int:
    """How many programs share a row whose mass is summed, a power of two."""
    parts = (
        _SUM_PROGRAMS // max(num_rows, 1)
        if num_rows <= _AT_ONCE
        else max(_SUM_PARTS[0], min(_SUM_PARTS[1], _SUMMED // num_rows))
    )
    return max(1, min(tiles // 4, 1 << max(parts, 1).bit_length() - 1))


def verify_keyed(
    target_logits: torch.Tensor,
    rows: Rows,
    requests: Requests,
    *,
    vocab_size: int | None = None,
    allowed: torch.Tensor | None = None,
    changes: Changes | None = None,
) -> KernelVerdict:
    """From raw logits to emitted tokens under `keyed`, for chains and trees; `KeyedKernel` once, for one call.

    target_logits: [rows, >= vocab_size] bf16, fp16 or fp32, on a GPU. rows, requests: see there. vocab_size: the
    model's, without padding; the width of the logits if None. allowed: [rows, ceil(V / 32)] int32, a set bit for each
    token that may be drawn. changes: penalties and bias. Raises ParameterError for logits of another shape or type.
    """
    size, num_exceptions = sizes_of(target_logits, rows, vocab_size, changes)
    kernel = KeyedKernel(target_logits, rows, size, num_exceptions=num_exceptions)
    return kernel(target_logits, rows, requests, allowed=allowed, changes=changes)


def draw(
    logits: torch.Tensor,
    rows: Rows,
    requests: Requests,
    *,
    vocab_size: int | None = None,
    allowed: torch.Tensor | None = None,
    changes: Changes | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids [rows], faults [rows]): each row's own token, -1 where it has a fault; the bits of `verify_keyed`.

    Plain decoding, and the rows after a draft: as `verify_keyed`, with `rows` of one row for each request
    (`Rows.of_drafts` with empty drafts).
    """
    if rows.most != 1:
        raise ParameterError("rows", f"{rows.most} rows in a request", "one row for each request")
    verdict = verify_keyed(logits, rows, requests, vocab_size=vocab_size, allowed=allowed, changes=changes)
    return verdict.token_ids[:, 0], verdict.faults
