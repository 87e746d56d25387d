"""Root-mean-square norms in few calls, for narrow forwards on a CPU, where a call costs as much as its work."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn.functional import rms_norm


def norm_beside_opposite(states: torch.Tensor, twice: torch.Tensor | None, eps: float) -> torch.Tensor:
    """states [..., n] / sqrt(mean(states²) + eps) · weight: the layer norm of x beside -x, whose mean is 0 and whose
    variance is mean(x²).

    twice: [2 n], the weight two times; None for 1. PyTorch has one kernel for a CPU's layer norm, and nine make up its
    root-mean-square norm: 61 norms of 576 numbers took 1.1 of a forward's 24 ms more.
    """
    size = states.shape[-1]
    both = torch.cat((states, states.neg()), dim=-1)
    return torch.layer_norm(both, (2 * size,), twice, None, eps).narrow(-1, 0, size)


@dataclass(frozen=True, slots=True)
class Norm:
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension. weight: one-dimensional."""

    weight: torch.Tensor
    eps: float
    _twice: torch.Tensor | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        on_host = self.weight.device.type == "cpu" and self.weight.dim() == 1
        object.__setattr__(self, "_twice", torch.cat([self.weight] * 2) if on_host else None)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """states [..., size of the weight]"""
        if self._twice is None:
            return rms_norm(states, self.weight.shape, self.weight, self.eps)
        return norm_beside_opposite(states, self._twice, self.eps)
