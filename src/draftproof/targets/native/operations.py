"""What lies between a layer's products, a call of machine code each: where a narrow forward's time goes to calls."""

from __future__ import annotations

import torch

from draftproof.targets.native.compiled import pointwise
from draftproof.targets.native.text import LANES
from draftproof.targets.norms import Norm
from draftproof.targets.static.operations import TorchOperations

LEAST_WORK = 1 << 15
"""Of fewer numbers other threads wouldn't begin before one is done."""


class NativeOperations(TorchOperations):
    """For bfloat16 whose rows are whole vectors, else as PyTorch has it. Make it where `compiled.available()`."""

    def __init__(self) -> None:
        self._functions = pointwise()
        # By identity; the norms are kept, so that none gets another's.
        self._weights: dict[int, tuple[Norm, torch.Tensor]] = {}

    def add_norm(
        self, residual: torch.Tensor, added: torch.Tensor | None, norm: Norm, count: torch.Tensor | None = None
    ) -> torch.Tensor:
        width = residual.shape[-1]
        if not _fits(residual, width) or (added is not None and not _fits(added, width)):
            return super().add_norm(residual, added, norm, count)
        known = self._weights.get(id(norm))
        if known is None:
            known = self._weights[id(norm)] = norm, norm.weight.detach().float().contiguous()
        out = torch.empty_like(residual)
        self._functions["add_norm"](
            residual.data_ptr(),
            0 if added is None else added.data_ptr(),
            known[1].data_ptr(),
            out.data_ptr(),
            residual.numel() // width,
            width,
            norm.eps,
            _num_threads(residual),
        )
        return out

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        width = joined.shape[-1] // 2
        if joined.shape[-1] % 2 or not _fits(joined, width):
            return super().gate(joined)
        out = joined.new_empty((*joined.shape[:-1], width))
        num_rows = out.numel() // width
        self._functions["gate"](joined.data_ptr(), out.data_ptr(), num_rows, width, _num_threads(joined))
        return out


def _fits(states: torch.Tensor, width: int) -> bool:
    return states.dtype == torch.bfloat16 and width > 0 and width % LANES == 0 and states.is_contiguous()


def _num_threads(states: torch.Tensor) -> int:
    return torch.get_num_threads() if states.numel() >= LEAST_WORK else 1
