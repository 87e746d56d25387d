"""A causal convolution over segments, each going on from the inputs before it.

y[t] = activation(bias + sum_j w[j] x[t - K + 1 + j]), the products added in the order of j, in float32 at least, and
rounded to the weights' dtype before the activation as transformers rounds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.activations import ACT2FN

from draftproof.targets.recurrent.steps import silu, widened


def extended(inputs: torch.Tensor, before: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """[K - 1 + length, channels] each: every segment behind the inputs that its first tokens reach back to.

    inputs: [tokens, channels], the segments one after another. before: [segments, K - 1, channels].
    """
    segments = torch.split(inputs, list(lengths))
    return [torch.cat(pair) for pair in zip(before.unbind(0), segments, strict=True)]


def convolve(
    rows: Sequence[torch.Tensor],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    """[tokens, channels] of the segments one after another; rows: `extended`; weight: [channels, K]."""
    reach = weight.shape[1] - 1
    begins, begin, row = [], 0, torch.cat(list(rows))
    for extended_row in rows:
        begins += list(range(begin, begin + len(extended_row) - reach))
        begin += len(extended_row)
    first, wide, taps = torch.tensor(begins, device=row.device), widened(row), widened(weight).unbind(1)
    total = torch.zeros_like(wide[: len(begins)]) if bias is None else widened(bias).expand(len(begins), -1)
    for place, tap in enumerate(taps):
        total = total + wide.index_select(0, first + place) * tap
    out = total.to(weight.dtype)
    if activation in ("silu", "swish"):
        out = silu(widened(out)).to(weight.dtype)
    elif activation is not None:
        out = ACT2FN[activation](out)
    return out.to(row.dtype)
