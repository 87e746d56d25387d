"""The launches of `rejection` and `block`, and the scratch that they write."""

from __future__ import annotations

from typing import Any, Final

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.bounds import (
    Bounding,
    bound_rows,
    parts_of,
    programs_of,
    rows_of,
    splits_alone,
    splits_of_pairs,
)
from draftproof.kernels.common import Common, common_arguments
from draftproof.kernels.exceptions import Changes, Exceptions
from draftproof.kernels.launch import Plan, require_triton
from draftproof.kernels.ratio.counted import CountedLaws
from draftproof.kernels.ratio.laws import DraftLaws
from draftproof.kernels.ratio.settling import Settling
from draftproof.kernels.verdict import KernelVerdict

_LAWS: Final = {"point": 0, "logits": 1, "probs": 2, "sparse": 3}
_TEST_WARPS: Final = 4
_FEW_ROWS: Final = 128  # bounded sooner than it is found out that they needn't be; raced by several programs each
_RACES: Final = 64  # programs that race one request, at most
_RACE_WARPS: Final = 4
_RACE_REGISTERS: Final = (112, 96)  # of few requests' races, and of many
_FEW_REQUESTS: Final = 16
_PAIR_REGISTERS: Final = 80  # of a read that sums what ranks before drafted tokens: 25 warps a processor


class RatioKernel:
    """`verify_rejection` or `verify_block` for one shape: allocates nothing after it is made.

    Any later call's logits and draft have the shapes, types and strides that it was made with.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        draft: DraftLaws,
        rows: Rows,
        vocab_size: int,
        *,
        block: bool,
        num_exceptions: int = 0,
        tile: int | None = None,
    ) -> None:
        """logits: [rows, >= vocab_size] bf16, fp16 or fp32. num_exceptions: `Changes.num_exceptions` of later calls.

        block: whether it is `verify_block`. tile: tokens a tile, chosen if None.
        """
        require_triton()
        draft.check(rows)
        self._block = block
        device, num_rows, num_requests = logits.device, rows.num_rows, rows.num_requests
        plan = Plan.of(logits, vocab_size, num_exceptions, tile)
        pairs = draft.kind == "logits"
        splits = splits_of_pairs(num_rows, plan.num_plain) if pairs else splits_alone(plan.num_plain)
        self._plan = plan = Plan.of(logits, vocab_size, num_exceptions, tile, splits)
        self._scratch = plan.scratch(device)
        self._exceptions = Exceptions.empty(rows, num_exceptions, vocab_size, plan.tile, device)
        self._nodes = nodes = 1 << max(rows.most - 1, 0).bit_length()
        share = -(-plan.num_tiles // parts_of(num_requests, plan.num_tiles, most=_RACES, least_tiles=2))
        self._num_splits = -(-plan.num_tiles // share)
        self._splits = 1 << (self._num_splits - 1).bit_length()
        self._asks_kth = num_rows > _FEW_ROWS
        self._draft_plan: Plan | None = None
        self._draft_scratch: tuple[torch.Tensor, ...] = self._scratch
        if draft.kind == "logits" and draft.values is not None and draft.values.shape[0]:
            self._draft_plan = Plan.of(draft.values, draft.vocab_size, tile=tile, splits=splits)
            sizes, count = self._draft_plan, draft.values.shape[0]
            floats = torch.empty((2, count, sizes.tiles), dtype=torch.float32, device=device)
            self._draft_scratch = (*floats, torch.empty((count, sizes.tiles), dtype=torch.int32, device=device))

        def floats32(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.float32, device=device)

        def floats64(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.float64, device=device)

        def ints(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        def longs(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int64, device=device)

        n = num_rows
        self._rows = rows_of(n, device)
        self._node_state = (
            floats32(n), floats32(n), floats64(n), floats32(n), floats32(n), floats32(n), ints(n), floats64(n),
        )  # fmt: skip
        self._bounding = Bounding.of(plan, device)
        self._prefixes = (floats64(n), ints(n), ints(num_requests), ints(num_requests))
        self._residual_masses = (longs(n), ints(1), ints(n))
        racing = (num_requests, self._splits)
        self._racers = (floats32(*racing), floats32(*racing), ints(*racing), ints(num_requests))
        self._settling = (
            None if block else Settling.of(plan, num_requests, self._racers[3], points=draft.kind == "point")
        )
        self._counted = CountedLaws.of(plan, logits, draft)
        asks_before = self._draft_plan is not None or self._settling is not None
        self._before = floats32(n, plan.tiles) if asks_before else None
        self._verdict = KernelVerdict.empty(rows, nodes, device)

    def __call__(
        self,
        logits: torch.Tensor,
        draft: DraftLaws,
        rows: Rows,
        requests: Requests,
        *,
        allowed: torch.Tensor | None = None,
        changes: Changes | None = None,
    ) -> KernelVerdict:
        """Runs the kernels. allowed: [rows, ceil(V / 32)] int32, a set bit for each token that may be drawn.

        changes: penalties and bias, of as many special tokens as the kernel was made for.
        """
        from draftproof.kernels.ratio.device.residual import mass_kernel, race_kernel
        from draftproof.kernels.ratio.device.stop import chain_kernel

        plan = self._plan
        common = common_arguments(plan, logits, rows, requests, allowed, changes, self._exceptions)
        law = _LAWS[draft.kind]
        steps = draft.vocab_size.bit_length() if draft.kind == "sparse" else 0
        values = self._values(draft, rows)
        chain = (rows.offsets, rows.drafted)
        temperature = rows.request if draft.temperature is None else draft.temperature
        sizes: dict[str, Any] = {"TILE": plan.tile, **common.flags, **plan.overlapping}
        tiles = {"TILES": plan.tiles}
        head = (*common.given, self._scratch, plan.num_tiles, plan.num_plain, plan.vocab_size, chain)
        bounded = (self._rows, self._node_state)
        options = {"LAW": law, "STEPS": steps, **sizes, **tiles}
        counted = self._counted if allowed is None and CountedLaws.takes(logits, draft) else None
        if not CountedLaws.pays(requests, plan.num_rows, settles=self._settling is not None):
            counted = None
        if counted is not None:
            counted.launch(logits, draft, rows, requests, self._scratch[0], *bounded, self._residual_masses,
                           self._racers[3])  # fmt: skip
        elif self._read_and_bound(logits, draft, rows, requests, common, head, values, temperature, options):
            return self._verdict
        verdict = self._verdict
        if self._block:
            chain_kernel[(rows.num_requests,)](
                chain, *bounded, self._prefixes, self._residual_masses, NODES=self._nodes,
                TOP_P=requests.top_p_alone and counted is None, OVERLAP=plan.overlaps, num_warps=1, **plan.overlapping,
            )  # fmt: skip
            mass_kernel[(programs_of(plan.num_rows, plan.num_tiles),)](
                *head, values, *bounded, self._prefixes, self._residual_masses, num_warps=4, **options,
            )  # fmt: skip
        race_kernel[(rows.num_requests * self._num_splits,)](
            *head, values, *bounded, self._prefixes, self._residual_masses, self._racers,
            (verdict.token_ids, verdict.accepted_rows, verdict.num_accepted, verdict.faults), self._num_splits,
            NODES=self._nodes, SPLITS=self._splits, BLOCK=self._block, num_warps=_RACE_WARPS,
            **plan.at_most(_RACE_REGISTERS[rows.num_requests > _FEW_REQUESTS]), **options,
        )  # fmt: skip
        return verdict

    def _read_and_bound(
        self,
        logits: torch.Tensor,
        draft: DraftLaws,
        rows: Rows,
        requests: Requests,
        common: Common,
        head: tuple[Any, ...],
        values: tuple[Any, ...],
        temperature: torch.Tensor,
        options: dict[str, Any],
    ) -> bool:
        """Launches the read, the tests and the bounds, as far as these are asked for; whether the verdict is written
        too."""
        from draftproof.kernels.ratio.device.bounded import bounded_test_kernel
        from draftproof.kernels.ratio.device.listed import listed_walk_kernel
        from draftproof.kernels.ratio.device.measure import test_kernel

        plan, verdict, draft_plan = self._plan, self._verdict, self._draft_plan or self._plan
        settling = self._settling if requests.top_p_alone and not requests.lists else None
        asks_before = requests.top_p_alone and requests.races and not plan.num_exceptions
        before = self._before if asks_before and (self._draft_plan is not None or settling is not None) else None
        sample = None if settling is None else settling.sample
        read_pair(self._plan, self._draft_plan, logits, draft, common, self._scratch, self._draft_scratch, head[-1],
                  values, temperature, requests, options["LAW"], before, sample)  # fmt: skip
        if settling is not None:
            settling.launch(
                plan, draft_plan, head, (values, temperature, self._draft_scratch, draft_plan.num_plain, before),
                (self._rows, self._node_state, self._bounding.bracket, self._residual_masses), verdict,
                nodes=self._nodes, sizes=options,
            )  # fmt: skip
            return True
        unfiltered = requests.unfiltered and not (requests.top_p_alone or requests.lists)
        asks_kth = requests.lists and self._asks_kth
        of_test = (
            *head, values, temperature, self._draft_scratch, draft_plan.num_plain,
            self._scratch[0] if before is None else before, self._rows, self._node_state, self._bounding.bracket,
            self._residual_masses, self._racers[3],
        )  # fmt: skip
        tests = {"DRAFT_TILES": draft_plan.tiles, "DRAFT_TILE": draft_plan.tile, "DRAFT_GROUP": draft_plan.group,
                 "WIDTH": 1024, "BLOCK": self._block, **options}  # fmt: skip
        bounded = (self._rows, self._node_state)
        lists = requests.lists and not (requests.top_p_alone or draft.kind == "probs")
        races = lists and asks_kth and not (self._block or requests.races)
        if races or (lists and not asks_kth):
            bounded_test_kernel[(2 * plan.num_rows,)](
                *of_test, plan.num_rows, RACES=races, num_warps=1, **plan.of_bound, **tests
            )
            if races:
                listed_walk_kernel[(rows.num_requests,)](
                    *head, values, *bounded, self._residual_masses[2],
                    (verdict.token_ids, verdict.accepted_rows, verdict.num_accepted, verdict.faults),
                    NODES=self._nodes, num_warps=_RACE_WARPS, **options,
                )  # fmt: skip
                return True
        else:
            test_kernel[(plan.num_rows,)](
                *of_test, TOP_P=requests.top_p_alone, LISTS=asks_kth, UNFILTERED=unfiltered, BEFORE=before is not None,
                num_warps=_TEST_WARPS, **tests,
            )  # fmt: skip
            if not unfiltered:
                bound_rows(plan, rows, requests, common, self._scratch, self._rows, self._node_state, self._bounding,
                           nodes=self._nodes, wanted=2 if self._block else 1)  # fmt: skip
        return False

    def _values(self, draft: DraftLaws, rows: Rows) -> tuple[Any, ...]:
        """(values, their stride, ids, their stride, vocabulary or K), placeholders where there are none."""
        none = rows.request
        if draft.values is None:
            return none, 0, none, 0, 0
        ids = none if draft.token_ids is None else draft.token_ids
        return draft.values, draft.values.stride(0), ids, ids.stride(0), draft.vocab_size


def read_pair(
    plan: Plan,
    draft_plan: Plan | None,
    logits: torch.Tensor,
    draft: DraftLaws,
    common: Common,
    scratch: tuple[torch.Tensor, ...],
    draft_scratch: tuple[torch.Tensor, ...],
    chain: tuple[Any, ...],
    values: tuple[Any, ...],
    temperature: torch.Tensor,
    requests: Requests,
    law: int,
    before: torch.Tensor | None,
    sample: tuple[torch.Tensor, ...] | None,
) -> None:
    """Launches the one read of the target's rows and, for a law from logits, of the draft's.

    before: [rows, tiles] float32, for the masses before drafted tokens; None where they aren't asked for. sample: for
    the counts of rows' samples, as device/samples.py has them, likewise.
    """
    from draftproof.kernels.ratio.device.read import read_pair_kernel

    quads = plan.quads(logits)
    draft_quads, sizes = quads, draft_plan or plan
    if draft_plan is not None and draft.values is not None:
        draft_quads = draft_plan.quads(draft.values)
    draft_splits = 0 if draft_plan is None else draft_plan.splits
    limits = {} if before is None else plan.at_most(_PAIR_REGISTERS)
    programs = plan.num_racers + draft_splits + Settling.programs(sample)
    read_pair_kernel[(plan.num_rows * programs,)](
        logits, quads, logits.stride(0), quads.stride(0), *common.given[2:], scratch, plan.num_plain,
        plan.tiles_per_split, plan.vocab_size, plan.splits, chain, values, draft_quads, draft_quads.stride(0),
        temperature, draft_scratch, sizes.num_plain, sizes.tiles_per_split, draft_splits,
        scratch[0] if before is None else before, scratch[:2] if sample is None else sample,
        BEFORE=before is not None, TILE=plan.tile,
        TILES=plan.tiles, PACKED=plan.packed, KIND=plan.kind, EVEN=plan.vocab_size % 4 == 0, DRAFT_TILES=sizes.tiles,
        DRAFT_PACKED=sizes.packed, DRAFT_KIND=sizes.kind, DRAFT_EVEN=sizes.vocab_size % 4 == 0, DRAFT_TILE=sizes.tile,
        LAW=law if draft_plan is not None else 0, MASS=requests.races, GROUPS=requests.lists, num_warps=1,
        SAMPLES=sample is not None, **common.flags, **common.of_read,
        **limits,
    )  # fmt: skip
