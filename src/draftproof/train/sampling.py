"""The next token of every row of training text: temperature, then top-p.

On a GPU with Triton the plain sampler of `kernels.keyed` draws, with noise keyed by the shard's seed, the row and the
column; elsewhere an exponential race over a seeded generator of the device. Both draw from the same law.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.params import SamplingParams


class Sampler(Protocol):
    """`begin` a shard; before each call, `expect` says what it is for."""

    def begin(self, seed: int) -> None:
        """Other noise from here on."""
        ...

    def expect(self, temperatures: NDArray[np.float32], column: int) -> None:
        """temperatures [rows] and the column of the next call."""
        ...

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [rows, V] to ids [rows], on the device; below 0 where a row has none."""
        ...


def choose_sampler(device: torch.device, num_rows: int, top_p: float) -> Sampler:
    """What draws on this device."""
    if device.type != "cuda":
        return RaceSampler(device, num_rows, top_p)
    try:
        import triton  # noqa: F401
    except ImportError:
        return RaceSampler(device, num_rows, top_p)
    return KernelSampler(device, num_rows, top_p)


class RaceSampler:
    """PyTorch's own operations."""

    def __init__(self, device: torch.device, num_rows: int, top_p: float) -> None:
        self._generator = torch.Generator(device)
        self._scale = torch.ones(num_rows, device=device)
        self._top_p = top_p

    def begin(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def expect(self, temperatures: NDArray[np.float32], column: int) -> None:
        self._scale.copy_(torch.from_numpy(temperatures))

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        probs = torch.softmax(logits.float() / self._scale[:, None], dim=-1)
        is_wrong = probs.isnan().any(dim=-1)
        if self._top_p < 1.0:
            ordered, order = probs.sort(dim=-1, descending=True)
            ordered[ordered.cumsum(dim=-1) - ordered >= self._top_p] = 0.0
            probs = torch.zeros_like(probs).scatter_(-1, order, ordered)
        race = torch.zeros_like(probs).exponential_(generator=self._generator).clamp_(min=1e-30)
        return torch.where(is_wrong, -1, (probs / race).argmax(dim=-1))


class KernelSampler:
    """One call of the kernel, over buffers of its own: it may be captured."""

    def __init__(self, device: torch.device, num_rows: int, top_p: float) -> None:
        from draftproof.kernels import Requests, Rows

        self._num_rows = num_rows
        self._rows = Rows.of_drafts([0] * num_rows, [[]] * num_rows, device=device)
        self._params = [SamplingParams(top_p=top_p)] * num_rows
        self._requests = Requests.of(self._params, [0] * num_rows, device=device)
        self._kernel: Any = None

    def begin(self, seed: int) -> None:
        from draftproof.kernels import Requests

        seeds = [(seed * 0x9E3779B97F4A7C15 + row) % (1 << 64) for row in range(self._num_rows)]
        given = Requests.of(self._params, seeds, device=self._requests.seed_low.device)
        self._requests.seed_low.copy_(given.seed_low)
        self._requests.seed_high.copy_(given.seed_high)

    def expect(self, temperatures: NDArray[np.float32], column: int) -> None:
        self._rows.position.fill_(column)
        self._requests.temperature.copy_(torch.from_numpy(temperatures))

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        from draftproof.kernels import KeyedKernel

        if self._kernel is None:
            self._kernel = KeyedKernel(logits, self._rows, logits.shape[-1])
        found: torch.Tensor = self._kernel(logits, self._rows, self._requests).token_ids[:, 0]
        return found
