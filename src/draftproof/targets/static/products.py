"""Launches of products of few rows that do what follows them in the same kernel, where that is the faster way.

Two kernels of a layer's ten are saved: the shares of a product whose depth is split are added up by the norm that comes
next, and the gate is applied to the product's tile. On an H200, with layers of Qwen3-8B's shape, a step of up to 16
tokens takes 7 % less. Of more tokens the gate needs tiles of another kind (`device/gated.py`): gate and up of 64, 128
and 256 tokens with their gate take 51, 54 and 72 µs, by the library and a kernel for the gate 54, 58 and 77. Shares
pay up to 128 tokens; of 129 to 256 a deep product is two of the library's, of half the depth each: down of 192 and 256
tokens with the norm takes 35 and 42 µs, in one 52 and 45.

Invariant steps have as many rows for one token as for all. There the kernels are told how many are wanted: where a tile
of 16 rows holds these, nothing else is read or multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch import nn

from draftproof.targets.static.attention import power_of_two
from draftproof.targets.static.chaining import chained

Product = Callable[[torch.Tensor], torch.Tensor]

DTYPES: Final = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Of a product [tokens, depth] · [size, depth]: sizes of a program's tile, shares of the depth, of the launch."""

    rows: int
    columns: int
    depth: int
    splits: int = 1
    stages: int = 4
    warps: int = 4

    def fits(self, size: int, depth: int) -> bool:
        """Are they whole tiles?"""
        return size % self.columns == 0 and depth % (self.depth * self.splits) == 0


FEW: Final = 16
"""Rows of a smaller tile, for steps whose other rows are padding."""
MOST_SPLIT: Final = 128
"""Tokens of a product in shares."""
MOST_HALVED: Final = 256
LIBRARY_TILE: Final = 128
DEEP: Final = 2
"""Depths of a size, above which the sum of two halves costs less than they save."""
MOST_GATED: Final = 16
"""Tokens of a product with its gate, each tile of both in registers."""
WIDE_STAGES: Final = {64: 7, 128: 5, 256: 4}
"""Rows of a tile of more tokens, and as many buffers as there is room for."""
WIDE_COLUMNS: Final = 96
LEAST_WAVE: Final = 0.9
LEAST_SIZE: Final = 2048
"""Rows of a weight, below which there are too few tiles."""


def gated_tiling(product: Product, states: torch.Tensor) -> tuple[torch.Tensor, Tiling] | None:
    """For silu(first half) · second half: the weight, and how. None where a kernel for the gate is as fast."""
    tiling = Tiling(power_of_two(max(len(states), 16)), 32, 128)
    weight = _weight(product, states, MOST_GATED)
    return (weight, tiling) if weight is not None and tiling.fits(weight.shape[0] // 2, weight.shape[1]) else None


def split_tiling(product: Product, states: torch.Tensor) -> tuple[torch.Tensor, Tiling] | None:
    """For a product that is added and normed next; None where the library's is as fast."""
    tiling = Tiling(power_of_two(max(len(states), 16)), 64, 128, splits=4 if len(states) <= 16 else 2)
    weight = _weight(product, states, MOST_SPLIT)
    return (weight, tiling) if weight is not None and tiling.fits(weight.shape[0], weight.shape[1]) else None


def gated(
    states: torch.Tensor, weight: torch.Tensor, tiling: Tiling, count: torch.Tensor | None = None
) -> torch.Tensor:
    """states [tokens, depth], weight [2 · size, depth]: [tokens, size].

    count [1] int32, here and below: how many rows are wanted, which come first; None for all. The others may hold
    anything.
    """
    size = weight.shape[0] // 2
    out = states.new_empty(states.shape[0], size)
    _launch(states, weight.view(2, size, -1), out, size, tiling, count, is_gated=True)
    return out


def wide_rows(product: Product, states: torch.Tensor) -> tuple[torch.Tensor, int] | None:
    """For the gate of a product of more tokens: the weight, and rows of a tile. None where tiles aren't one full wave.

    A wave is as many tiles as the device has processors.
    """
    rows = max(power_of_two(len(states)), min(WIDE_STAGES))
    weight = _weight(product, states, max(WIDE_STAGES)) if len(states) > MOST_GATED else None
    if weight is None or not has_wide_gates(weight.device):
        return None
    size, depth = weight.shape[0] // 2, weight.shape[1]
    tiles, wave = -(-size // WIDE_COLUMNS), torch.cuda.get_device_properties(weight.device).multi_processor_count
    fits = size % 8 == 0 and depth % 64 == 0
    return (weight, rows) if fits and LEAST_WAVE * wave <= tiles <= wave else None


def gated_wide(
    states: torch.Tensor, weight: torch.Tensor, rows: int, count: torch.Tensor | None = None
) -> torch.Tensor:
    """As `gated`, by tiles of `rows` tokens and 96 columns."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from draftproof.targets.static.device.gated import gated_kernel

    (num_tokens, depth), size = states.shape, weight.shape[0] // 2
    out = states.new_empty(num_tokens, size)
    # Turns of eight rows of gate and of up.
    turns = weight.view(2, size // 8, 8, depth).transpose(0, 1)

    def described(tensor: torch.Tensor, block: list[int]) -> Any:
        layout = gl.NVMMASharedLayout(min(2 * block[-1], 128), 16, rank=len(block))
        return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)

    outs = [described(out, [height, width]) for height in (rows, FEW) for width in (64, 32)]
    grid = (-(-num_tokens // rows) * -(-size // WIDE_COLUMNS),)
    gated_kernel[grid](
        described(states, [rows, 64]), described(states, [FEW, 64]), described(turns, [8, 2, 8, 64]),
        described(turns, [4, 2, 8, 64]), *outs, states if count is None else count, num_tokens, depth,
        ROWS=rows, FEW=FEW, STAGES=WIDE_STAGES[rows], COUNTED=count is not None, num_warps=8,
    )  # fmt: skip
    return out


def parts(
    states: torch.Tensor, weight: torch.Tensor, tiling: Tiling, count: torch.Tensor | None = None
) -> torch.Tensor:
    """states [tokens, depth], weight [size, depth]: [splits, tokens, size] in float32, whose sum is the product."""
    out = states.new_empty(tiling.splits, states.shape[0], weight.shape[0], dtype=torch.float32)
    _launch(states, weight, out, weight.shape[0], tiling, count, is_gated=False)
    return out


def halved(product: Product, states: torch.Tensor) -> torch.Tensor | None:
    """For a product that is added and normed next: the weight, where the library's is faster as two of half the depth.

    That is of a deep one whose tiles are less than half a wave.
    """
    weight = _weight(product, states, MOST_HALVED) if len(states) > MOST_SPLIT else None
    if weight is None:
        return None
    (size, depth), wave = weight.shape, torch.cuda.get_device_properties(weight.device).multi_processor_count
    tiles = -(-len(states) // LIBRARY_TILE) * -(-size // LIBRARY_TILE)
    return weight if depth % 16 == 0 and depth >= DEEP * size and 2 * tiles <= wave else None


def halves(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As `parts`, two of them, by the library."""
    (num_tokens, depth), size = states.shape, weight.shape[0]
    lefts = states.view(num_tokens, 2, depth // 2).transpose(0, 1)
    rights = weight.view(size, 2, depth // 2).permute(1, 2, 0)
    return torch.bmm(lefts, rights, out_dtype=torch.float32)


def _launch(
    states: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    size: int,
    tiling: Tiling,
    count: torch.Tensor | None,
    *,
    is_gated: bool,
) -> None:
    # Imported where it is needed: Triton is there on machines with a GPU alone.
    from triton.tools.tensor_descriptor import TensorDescriptor

    from draftproof.targets.static.device.product import product_kernel

    num_tokens, depth = states.shape
    block = [*([2] if is_gated else []), tiling.columns, tiling.depth]
    descriptors = [
        TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), sizes)
        for tensor, sizes in (
            (states, [tiling.rows, tiling.depth]),
            (states, [FEW, tiling.depth]),
            (weight, block),
        )
    ]
    grid = (-(-num_tokens // tiling.rows) * -(-size // tiling.columns), tiling.splits)
    product_kernel[grid](
        *descriptors, out, states if count is None else count, num_tokens, size, depth,
        ROWS=tiling.rows, FEW=FEW, COLUMNS=tiling.columns, DEPTH=tiling.depth, SPLITS=tiling.splits, GATED=is_gated,
        COUNTED=count is not None, STAGES=tiling.stages, PRECISION="ieee" if states.dtype == torch.float32 else "tf32",
        num_warps=tiling.warps, **chained(states),
    )  # fmt: skip


def _weight(product: Any, states: torch.Tensor, most: int) -> torch.Tensor | None:
    """Of a product that these kernels are for, of at most so many tokens."""
    bias = getattr(product, "bias", None)
    if type(product) is not nn.Linear or bias is not None or states.dtype not in DTYPES or len(states) > most:
        return None
    weight: torch.Tensor = product.weight
    # As a tensor descriptor takes them.
    is_plain = all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in (states, weight))
    is_taken = len(weight) >= LEAST_SIZE and states.is_cuda and is_plain and _has_descriptors(states.device)
    return weight if is_taken else None


@lru_cache
def _has_descriptors(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache
def has_wide_gates(device: torch.device) -> bool:
    """Is it a processor whose groups of warps multiply, and the release of Triton that the kernel was run with?

    Its language, Gluon, is experimental.
    """
    import triton

    is_hopper = torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9
    return is_hopper and str(triton.__version__).startswith("3.6.")
