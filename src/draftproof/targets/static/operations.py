"""What lies between a layer's matrix products: as one kernel each, or as PyTorch's own operations."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Final, NamedTuple, Protocol

import torch
from torch.nn.functional import silu

from draftproof.targets.norms import Norm
from draftproof.targets.static import products
from draftproof.targets.static.attention import power_of_two
from draftproof.targets.static.chaining import chained
from draftproof.targets.static.products import Product

MOST_TOGETHER: Final = 8
"""Heads of one program that norms and rotates them, a power of two."""


@dataclass(frozen=True, slots=True)
class Heads:
    """How a layer's joined projection [tokens, (heads + 2 · kv_heads) · dim] is read; norms of queries and keys."""

    heads: int
    kv_heads: int
    dim: int
    query_norm: Norm | None
    key_norm: Norm | None


class Operations(Protocol):
    """All take and return contiguous tensors whose first dimension is the token.

    count [1] int32, on the device: how many tokens are wanted, which come first; None for all. What is returned of the
    others may be anything.
    """

    def add_norm(
        self, residual: torch.Tensor, added: torch.Tensor | None, norm: Norm, count: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add to `residual` in place; returns its norm."""
        ...

    def place(
        self,
        joined: torch.Tensor,
        heads: Heads,
        cos: torch.Tensor,
        sin: torch.Tensor,
        columns: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        count: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Norms and rotation; keys and values go to their columns of [kv_heads, columns, dim]. Returns the queries
        [tokens, heads, dim]. cos, sin: [tokens, dim]."""
        ...

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        """silu(first half) · second half."""
        ...

    def gated(self, product: Product, states: torch.Tensor, count: torch.Tensor | None = None) -> torch.Tensor:
        """The gate of a product."""
        return self.gate(product(states))

    def add_product_norm(
        self,
        residual: torch.Tensor,
        product: Product,
        states: torch.Tensor,
        norm: Norm,
        count: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add a product to `residual` in place; returns its norm."""
        return self.add_norm(residual, product(states), norm, count)

    def write(self, states: torch.Tensor, columns: torch.Tensor, cached: torch.Tensor) -> None:
        """states [heads, tokens, dim] into their columns of [heads, columns, dim]; padding into none."""
        ...


class TorchOperations(Operations):
    """PyTorch's own; `place` and `write` read the columns on the host."""

    def add_norm(
        self, residual: torch.Tensor, added: torch.Tensor | None, norm: Norm, count: torch.Tensor | None = None
    ) -> torch.Tensor:
        if added is not None:
            residual += added
        return norm(residual)

    def place(
        self,
        joined: torch.Tensor,
        heads: Heads,
        cos: torch.Tensor,
        sin: torch.Tensor,
        columns: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        count: torch.Tensor | None = None,
    ) -> torch.Tensor:
        query, key, value = split_heads(joined, heads, Turning.of(cos, sin))
        query = query.contiguous()
        self.write(key.transpose(0, 1), columns, keys)
        self.write(value.transpose(0, 1), columns, values)
        return query

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        gate, up = joined.chunk(2, dim=-1)
        return silu(gate).mul_(up)

    def write(self, states: torch.Tensor, columns: torch.Tensor, cached: torch.Tensor) -> None:
        count = int((columns >= 0).sum())
        cached.index_copy_(1, columns[:count].long(), states[:, :count].contiguous())


class Turning(NamedTuple):
    """Rotary position embedding, halves as transformers has them: x · cos + (x with its halves swapped) · sin.

    cos, sin: [tokens, 1, dim], the first half of `sin` negative.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, cos: torch.Tensor, sin: torch.Tensor) -> Turning:
        """cos, sin: [tokens, dim], as models have them."""
        low, high = sin.chunk(2, dim=-1)
        return cls(cos[:, None], torch.cat([-low, high], dim=-1)[:, None])

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """states [tokens, heads, dim]"""
        return (states * self.cos).addcmul_(states.roll(states.shape[-1] // 2, dims=-1), self.sin)


def split_heads(
    joined: torch.Tensor, heads: Heads, turning: Turning
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys, normed and rotated, and values: [tokens, heads or kv_heads, dim] each."""
    parts = joined.view(joined.shape[0], -1, heads.dim)
    both = parts[:, : heads.heads + heads.kv_heads]
    if heads.query_norm is not None and heads.key_norm is not None:
        both = torch.cat([heads.query_norm(both[:, : heads.heads]), heads.key_norm(both[:, heads.heads :])], dim=1)
    turned = turning(both)
    return turned[:, : heads.heads], turned[:, heads.heads :], parts[:, heads.heads + heads.kv_heads :]


class KernelOperations(Operations):
    """One Triton kernel each, or one with the product before it."""

    def add_norm(
        self, residual: torch.Tensor, added: torch.Tensor | None, norm: Norm, count: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._add_norm(residual, residual if added is None else added, norm, int(added is not None), count)

    def add_product_norm(
        self,
        residual: torch.Tensor,
        product: Product,
        states: torch.Tensor,
        norm: Norm,
        count: torch.Tensor | None = None,
    ) -> torch.Tensor:
        found = products.split_tiling(product, states)
        # Counted steps take one kind of product for all that they have to agree with.
        halved = products.halved(product, states) if found is None and count is None else None
        if found is not None:
            parts = products.parts(states, *found, count)
        elif halved is not None:
            parts = products.halves(states, halved)
        else:
            return super().add_product_norm(residual, product, states, norm, count)
        return self._add_norm(residual, parts, norm, len(parts), count)

    def _add_norm(
        self, residual: torch.Tensor, added: torch.Tensor, norm: Norm, num_parts: int, count: torch.Tensor | None
    ) -> torch.Tensor:
        from draftproof.targets.static.device.layer import add_norm_kernel

        (num_tokens, size), out = residual.shape, torch.empty_like(residual)
        block = power_of_two(size)
        add_norm_kernel[(num_tokens,)](
            residual, added, norm.weight, out, residual if count is None else count, norm.eps, num_tokens,
            SIZE=size, BLOCK=block, PARTS=num_parts, COUNTED=count is not None,
            num_warps=min(max(block // 512, 1), 8), **chained(residual),
        )  # fmt: skip
        return out

    def place(
        self,
        joined: torch.Tensor,
        heads: Heads,
        cos: torch.Tensor,
        sin: torch.Tensor,
        columns: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        count: torch.Tensor | None = None,
    ) -> torch.Tensor:
        from draftproof.targets.static.device.layer import place_kernel

        query = joined.new_empty(joined.shape[0], heads.heads, heads.dim)
        norms = heads.query_norm is not None and heads.key_norm is not None
        query_norm, key_norm = heads.query_norm or Norm(joined, 0.0), heads.key_norm or Norm(joined, 0.0)
        together, half = gcd(heads.heads, heads.kv_heads, MOST_TOGETHER), power_of_two(heads.dim // 2)
        place_kernel[(joined.shape[0], (heads.heads + 2 * heads.kv_heads) // together)](
            joined, cos, sin, query_norm.weight, key_norm.weight, columns, query, keys, values,
            columns if count is None else count, query_norm.eps, key_norm.eps, joined.stride(0), keys.stride(0),
            keys.stride(1), values.stride(0), values.stride(1), HEADS=heads.heads, KV_HEADS=heads.kv_heads,
            DIM=heads.dim, HALF=half, TOGETHER=together, NORMS=norms, COUNTED=count is not None,
            num_warps=max(together * half // 128, 1), **chained(joined),
        )  # fmt: skip
        return query

    def gated(self, product: Product, states: torch.Tensor, count: torch.Tensor | None = None) -> torch.Tensor:
        found = products.gated_tiling(product, states)
        if found is not None:
            return products.gated(states, *found, count)
        wide = products.wide_rows(product, states)
        return super().gated(product, states) if wide is None else products.gated_wide(states, *wide, count)

    def gate(self, joined: torch.Tensor) -> torch.Tensor:
        from draftproof.targets.static.device.layer import gate_kernel

        size = joined.shape[-1] // 2
        out = joined.new_empty(joined.shape[0], size)
        gate_kernel[(joined.shape[0], -(-size // 1024))](joined, out, SIZE=size, BLOCK=1024, num_warps=4)
        return out

    def write(self, states: torch.Tensor, columns: torch.Tensor, cached: torch.Tensor) -> None:
        from draftproof.targets.static.device.layer import write_kernel

        write_kernel[(states.shape[1], states.shape[0])](
            states, columns, cached, states.stride(1), states.stride(0), cached.stride(0), cached.stride(1),
            DIM=states.shape[2], BLOCK=power_of_two(states.shape[2]), num_warps=1,
        )  # fmt: skip


def operations_for(device: torch.device) -> Operations:
    """Kernels on a CUDA device, PyTorch's operations elsewhere."""
    return KernelOperations() if device.type == "cuda" else TorchOperations()
