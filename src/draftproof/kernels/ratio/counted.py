"""The read, the tests and the bounds of `rejection` and `block` in one launch, in CUDA C++ (cuda/ratio.cu)."""

from __future__ import annotations

import ctypes
from typing import Final

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.counted import begins_well, counted_kernel, row_arguments
from draftproof.kernels.launch import Plan
from draftproof.kernels.nvrtc import Kernel
from draftproof.kernels.ratio.laws import DraftLaws

_MOST_ROWS: Final = 512  # of more, programs that share nothing are as fast
_FEW_ROWS: Final = 16


class CountedLaws:
    """The launch for one shape: allocates nothing after it is made."""

    def __init__(self, kernel: Kernel, num_programs: int) -> None:
        self._kernel, self._num_programs = kernel, num_programs

    @classmethod
    def of(cls, plan: Plan, logits: torch.Tensor, draft: DraftLaws) -> CountedLaws | None:
        """For the rows of `plan`; None where they aren't of bfloat16, are too many, or have special tokens, where the
        draft's law is a list or probabilities, and where CUDA C++ doesn't run."""
        if draft.kind not in ("point", "logits") or plan.num_rows > _MOST_ROWS:
            return None
        found = counted_kernel("ratio.cu", "laws", plan, logits, draft.values, draft.vocab_size)
        return None if found is None else cls(*found)

    @staticmethod
    def takes(logits: torch.Tensor, draft: DraftLaws) -> bool:
        """Whether it can be given a call's logits."""
        return begins_well(logits) and begins_well(draft.values)

    @staticmethod
    def pays(requests: Requests, num_rows: int, *, settles: bool) -> bool:
        """Whether it is faster than what it takes the place of: where top-p alone asks for bounds. settles: whether
        such rows are settled without one (settling.py)."""
        return requests.top_p_alone and (not settles or requests.lists or num_rows <= _FEW_ROWS)

    def launch(
        self,
        logits: torch.Tensor,
        draft: DraftLaws,
        rows: Rows,
        requests: Requests,
        tile_max: torch.Tensor,
        row_state: tuple[torch.Tensor, ...],
        node_state: tuple[torch.Tensor, ...],
        residual_masses: tuple[torch.Tensor, ...],
        num_ended: torch.Tensor,
    ) -> None:
        """Launches it. tile_max: [rows, tiles] float32. row_state, node_state, residual_masses, num_ended: as
        ratio/device/measure.py writes them."""
        values = logits if draft.values is None else draft.values
        temperature = requests.temperature if draft.temperature is None else draft.temperature
        faults, states, z_bounds, id_bounds, largest, _, masses, _ = row_state
        self._kernel(
            self._num_programs, *row_arguments(logits, rows, requests), values, ctypes.c_longlong(values.stride(0)),
            temperature, rows.offsets, rows.position, rows.drafted, requests.seed_low, requests.seed_high,
            requests.sample_index, tile_max, faults, states, z_bounds, id_bounds, largest, masses, *node_state,
            residual_masses[0], residual_masses[1], num_ended,
        )  # fmt: skip
