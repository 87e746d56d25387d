"""DFlash 2's local mixing: a grouped, dynamic, causal convolution before and after each sublayer.

Formula, slot t of a block, channel c of group g, K taps:
    out[t, c] = sum over k < K of (base[k, c] + dynamic[t, k, g]) · x[t - k, c], x before the block = 0
The dynamic kernels of both sides come from one projection of what enters the sublayer.
Source: z-lab/dflash 0.1.0, GroupedDynamicCausalConv.
"""

from __future__ import annotations

import torch
from torch import nn

from draftproof.drafters.learned.modules import Linear


class LocalConvolution(nn.Module):
    """`enter` mixes the sublayer's input and returns the kernels for `leave`, which mixes its output."""

    def __init__(self, hidden_size: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.kernel_size, self.group_size = kernel_size, group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel_size, hidden_size))
        self.kernel_projection = Linear(hidden_size, 2 * kernel_size * (hidden_size // group_size))

    def enter(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, n, hidden] to the mixed input and the output's kernels [rows, n, K, groups]."""
        kernels = self.kernel_projection(features).view(*features.shape[:2], 2, self.kernel_size, -1)
        return self._mix(features, self.base_kernel[0], kernels[:, :, 0]), kernels[:, :, 1]

    def leave(self, features: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
        """[rows, n, hidden] mixed."""
        return self._mix(features, self.base_kernel[1], kernels)

    def _mix(self, features: torch.Tensor, base: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
        dynamic = kernels.repeat_interleave(self.group_size, dim=-1)
        out = torch.zeros_like(features)
        for tap in range(self.kernel_size):
            shifted = features if tap == 0 else nn.functional.pad(features[:, :-tap], (0, 0, tap, 0))
            out = out + (base[tap] + dynamic[:, :, tap]) * shifted
        return out
