"""`target_probs` in one launch, in CUDA C++ (cuda/probs.cu)."""

from __future__ import annotations

import ctypes

import torch

from draftproof.kernels.arguments import Requests, Rows
from draftproof.kernels.counted import counted_kernel, row_arguments
from draftproof.kernels.launch import Plan
from draftproof.kernels.nvrtc import Kernel


class CountedProbs:
    """The launch for one shape: allocates nothing."""

    def __init__(self, kernel: Kernel, num_programs: int) -> None:
        self._kernel, self._num_programs = kernel, num_programs

    @classmethod
    def of(cls, plan: Plan, logits: torch.Tensor) -> CountedProbs | None:
        """For the rows of `plan`; None where they aren't of bfloat16, and where CUDA C++ doesn't run."""
        found = counted_kernel("probs.cu", "probs", plan, logits, None, 0)
        return None if found is None else cls(*found)

    def launch(
        self, logits: torch.Tensor, rows: Rows, requests: Requests, out: torch.Tensor, faults: torch.Tensor
    ) -> None:
        """Launches it. out, faults: as `target_probs` has them."""
        by_fours = out.stride(0) % 4 == 0 and out.data_ptr() % 16 == 0
        self._kernel(
            self._num_programs, *row_arguments(logits, rows, requests), out, ctypes.c_longlong(out.stride(0)), faults,
            ctypes.c_int(by_fours),
        )  # fmt: skip
