"""The next token of every row of training text: temperature, then top-p.

On a GPU with Triton the plain sampler of `kernels.keyed` draws, with noise keyed by the shard's seed, the row and the
column; elsewhere an exponential race over a seeded generator of the device. Both draw from the same law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from draftproof.errors import ModelError
from draftproof.params import SamplingParams

Draw = Callable[[torch.Tensor, Sequence[float], int], list[int]]
"""(logits [rows, V], a temperature for each row, the column) to a token id for each row."""


def choose_sampler(device: torch.device, num_rows: int, top_p: float, seed: int) -> Draw:
    """What draws on this device."""
    if device.type != "cuda":
        return _Race(device, top_p, seed)
    try:
        import triton  # noqa: F401
    except ImportError:
        return _Race(device, top_p, seed)
    return _Kernel(device, num_rows, top_p, seed)


class _Race:
    def __init__(self, device: torch.device, top_p: float, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._top_p = top_p

    def __call__(self, logits: torch.Tensor, temperatures: Sequence[float], column: int) -> list[int]:
        scale = torch.tensor(list(temperatures), device=logits.device)
        probs = torch.softmax(logits.float() / scale[:, None], dim=-1)
        if self._top_p < 1.0:
            ordered, order = probs.sort(dim=-1, descending=True)
            ordered[ordered.cumsum(dim=-1) - ordered >= self._top_p] = 0.0
            probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
        race = torch.zeros_like(probs).exponential_(generator=self._generator).clamp_(min=1e-30)
        found: list[int] = (probs / race).argmax(dim=-1).tolist()
        return found


class _Kernel:
    def __init__(self, device: torch.device, num_rows: int, top_p: float, seed: int) -> None:
        from draftproof.kernels import KeyedKernel, Requests, Rows

        self._rows = Rows.of_drafts([0] * num_rows, [[]] * num_rows, device=device)
        seeds = [(seed * 0x9E3779B97F4A7C15 + row) % (1 << 64) for row in range(num_rows)]
        self._requests = Requests.of([SamplingParams(top_p=top_p)] * num_rows, seeds, device=device)
        self._kernel: KeyedKernel | None = None

    def __call__(self, logits: torch.Tensor, temperatures: Sequence[float], column: int) -> list[int]:
        from draftproof.kernels import KeyedKernel

        if self._kernel is None:
            self._kernel = KeyedKernel(logits, self._rows, logits.shape[-1])
        self._rows.position.fill_(column)
        self._requests.temperature.copy_(torch.tensor(list(temperatures)))
        found: list[int] = self._kernel(logits, self._rows, self._requests).token_ids[:, 0].tolist()
        if min(found) < 0:
            raise ModelError("the target's logits hold NaN, or no finite number in a row")
        return found
