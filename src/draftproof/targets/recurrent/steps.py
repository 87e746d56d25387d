"""One step of each recurrence, in float32 at least, and how the arguments of transformers' functions become its inputs.

S is a segment's state. All inputs are [tokens, …].

- Gated delta rule (Yang et al. 2412.06464, equation 10): S <- exp(g) S; S <- S + k beta (v - k S); read q S / sqrt(d).
- State space, Mamba-2 (Dao and Gu 2405.21060): S <- exp(dt A) S + (dt x) B; read S C + D x.
- State space, Mamba (Gu and Dao 2312.00752): the same, with a row of A for each channel.

dt = softplus(dt + bias), within the model's limits. transformers applies those limits in forwards of several tokens
and not in those of one; here they always apply.

Exponentials and logarithms are torch's `exp` and `log1p`, whose bits don't depend on an element's place in a tensor;
those of its `softplus` and `silu` do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.targets.recurrent.scan import Tensors, fixed_sum

MOST_EXPONENTIAL = 20.0
"""Beyond it softplus is the identity, as in torch."""
NORM_EPS = 1e-6


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """In float32 at least, contiguous."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).contiguous()


def softplus(value: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(value))."""
    small = value.clamp(max=MOST_EXPONENTIAL)
    return torch.where(value > MOST_EXPONENTIAL, value, torch.log1p(torch.exp(small)))


def silu(value: torch.Tensor) -> torch.Tensor:
    """value / (1 + exp(-value))."""
    return value / (1 + torch.exp(-value))


class GatedDelta:
    """State [segments, heads, key dim, value dim]."""

    def advance(self, state: torch.Tensor, *writes: torch.Tensor) -> torch.Tensor:
        """writes: keys, values, decay [segments, heads], beta [segments, heads]."""
        keys, values, decay, beta = writes
        state = state * decay[..., None, None]
        change = (values - fixed_sum(state * keys[..., None], -2)) * beta[..., None]
        return state + keys[..., None] * change[..., None, :]

    def read(self, state: torch.Tensor, *reads: torch.Tensor) -> torch.Tensor:
        """reads: queries. [segments, heads, value dim]."""
        return fixed_sum(state * reads[0][..., None], -2)


def gated_delta_inputs(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *, norm: bool
) -> tuple[Tensors, Tensors]:
    """Writes and reads, from [1, tokens, heads, …]; each key head serves several value heads that follow each other."""
    heads = value.shape[2]
    queries, keys = (_normed(widened(part[0]), norm) for part in (query, key))
    groups = heads // keys.shape[1]
    queries, keys = (part.repeat_interleave(groups, dim=1) for part in (queries, keys))
    decay = torch.exp(widened(g[0]))
    return (keys, widened(value[0]), decay, widened(beta[0])), (queries * queries.shape[-1] ** -0.5,)


def _normed(states: torch.Tensor, norm: bool) -> torch.Tensor:
    if not norm:
        return states
    return states * torch.rsqrt(fixed_sum(states * states, -1) + NORM_EPS)[..., None]


class StateSpace:
    """State [segments, heads, head dim, state size]; one decay for each head."""

    def advance(self, state: torch.Tensor, *writes: torch.Tensor) -> torch.Tensor:
        """writes: decay [segments, heads], dt x [segments, heads, head dim], B [segments, groups, state size]."""
        decay, values, keys = writes
        return state * decay[..., None, None] + values[..., None] * _by_head(keys, state)

    def read(self, state: torch.Tensor, *reads: torch.Tensor) -> torch.Tensor:
        """reads: C [segments, groups, state size]. [segments, heads, head dim]."""
        return fixed_sum(state * _by_head(reads[0], state), -1)


def _by_head(groups: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return groups.repeat_interleave(state.shape[1] // groups.shape[1], dim=1)[:, :, None, :]


def state_space_inputs(
    values: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor
) -> tuple[Tensors, Tensors]:
    """Writes and reads. values: [tokens, heads, head dim]; dt: `time_steps`; decay: A [heads]; B and C by groups."""
    decays = torch.exp(dt * widened(decay))
    return (decays, dt[..., None] * widened(values), widened(keys)), (widened(queries),)


def time_steps(
    dt: torch.Tensor, bias: torch.Tensor | None, *, positive: bool, limits: tuple[float, float]
) -> torch.Tensor:
    """softplus(dt + bias), if positive is asked for, within the limits; dt: [tokens, channels or heads]."""
    dt = widened(dt)
    if bias is not None:
        dt = dt + widened(bias)
    return (softplus(dt) if positive else dt).clamp(*limits)


@dataclass(frozen=True, slots=True)
class ChannelStateSpace:
    """State [segments, channels, state size]. decay: A [channels, state size], in float32 at least."""

    decay: torch.Tensor

    def advance(self, state: torch.Tensor, *writes: torch.Tensor) -> torch.Tensor:
        """writes: dt and x [segments, channels], B [segments, state size]."""
        dt, values, keys = writes
        return state * torch.exp(dt[..., None] * self.decay) + (dt * values)[..., None] * keys[:, None, :]

    def read(self, state: torch.Tensor, *reads: torch.Tensor) -> torch.Tensor:
        """reads: C [segments, state size]. [segments, channels]."""
        return fixed_sum(state * reads[0][:, None, :], -1)
