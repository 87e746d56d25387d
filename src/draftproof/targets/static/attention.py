"""Attention over a static forward's tables: the kernel where there is one, else the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from draftproof.targets.static import reference
from draftproof.targets.static.chaining import chained
from draftproof.targets.static.tables import Bucket, Tables

LOG2_E: Final = 1.4426950408889634
LEAST_QUERIES: Final = 16
"""Of a matrix product on the device."""
MOST_QUERIES: Final = 64
"""Queries of a row, heads that share a key head counted: longer runs are cut into several rows."""
BUSY: Final = 528
"""Programs that keep a device busy: four on each of 132 processors."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one layer's attention."""

    num_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None

    @property
    def groups(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.kv_heads


def most_tokens(groups: int) -> int:
    """Tokens of a row of attention."""
    return max(MOST_QUERIES // power_of_two(groups), 1)


def power_of_two(value: int) -> int:
    """The least power of two that is `value` or more."""
    return 1 << max(value - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class Splits:
    """Where keys are cut: `num_fine` splits of `fine` keys, then splits of `size`."""

    size: int
    fine: int = 64
    num_fine: int = 0

    def count(self, num_keys: int) -> int:
        """Of so many keys."""
        if num_keys <= self.num_fine * self.fine:
            return -(-num_keys // self.fine)
        return self.num_fine + -(-(num_keys - self.num_fine * self.fine) // self.size)


INVARIANT_SPLITS: Final = Splits(256, fine=128, num_fine=8)
"""Many programs for short contexts, which are most, and not too much to merge of long ones."""


class Attention:
    """Attention of all layers of one shape in forwards of one bucket.

    invariant: splits and tiles don't depend on the bucket.
    """

    def __init__(self, shape: Shape, bucket: Bucket, device: torch.device, *, invariant: bool) -> None:
        self.shape, self.bucket = shape, bucket
        self._uses_kernel = device.type == "cuda"
        width = most_tokens(shape.groups) if invariant else bucket.width
        self.block_m = max(power_of_two(width * shape.groups), LEAST_QUERIES)
        self.splits = INVARIANT_SPLITS if invariant else Splits(_split(shape, bucket, self.block_m))
        self.num_splits = self.splits.count(bucket.num_keys)

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: Tables, scale: float
    ) -> torch.Tensor:
        """query [tokens, heads, dim], contiguous, over one layer's [kv_heads, columns, dim]; [tokens, heads, dim]."""
        if not self._uses_kernel:
            return reference.attend(query, keys, values, tables, scale, self.shape.window)
        return self.launch(query, keys, values, tables, scale)

    def launch(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: Tables, scale: float
    ) -> torch.Tensor:
        """The kernel."""
        # Imported where it is needed: Triton is there on machines with a GPU alone.
        from draftproof.targets.static.device.attention import merge_kernel, split_kernel

        shape, bucket = self.shape, self.bucket
        out = query.new_empty(query.shape[0], shape.num_heads, shape.value_dim)
        padded = max(power_of_two(shape.value_dim), LEAST_QUERIES)
        parts = query.shape[0] * shape.num_heads * self.num_splits if self.num_splits > 1 else 1
        sums = torch.empty(parts, padded, dtype=torch.float32, device=query.device)
        stats = torch.empty(parts, 2, dtype=torch.float32, device=query.device)
        sizes: dict[str, Any] = {
            "HEADS": shape.num_heads,
            "GROUPS": shape.groups,
            "VALUE_DIM": shape.value_dim,
            "VALUE_PADDED": padded,
            "SPLIT": self.splits.size,
            "FINE": self.splits.fine,
            "NUM_FINE": self.splits.num_fine,
        }
        split_kernel[(bucket.num_rows, shape.kv_heads, self.num_splits)](
            query, keys, values, tables.rows, tables.positions, tables.links, out, sums, stats,
            scale * LOG2_E, self.num_splits, keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            **sizes, DIM=shape.key_dim, DIM_PADDED=max(power_of_two(shape.key_dim), LEAST_QUERIES),
            BLOCK_M=self.block_m, BLOCK_N=min(64, self.splits.size, self.splits.fine), KIND=int(bucket.kind),
            MERGES=self.num_splits > 1,
            LINKS=max(bucket.num_links, 1), WINDOW=shape.window or 0,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=4, **chained(query),
        )  # fmt: skip
        if self.num_splits > 1:
            merge_kernel[(bucket.num_rows, shape.kv_heads, bucket.width * shape.groups)](
                tables.rows, out, sums, stats, self.num_splits, **sizes, num_warps=1, **chained(query)
            )
        return out


def _split(shape: Shape, bucket: Bucket, block_m: int) -> int:
    """Keys of a program: many enough to be worth the merging, few enough to keep the device busy.

    The more queries, the more there is to merge.
    """
    busy = BUSY if block_m == LEAST_QUERIES else BUSY // 2
    wanted = bucket.num_keys * bucket.num_rows * shape.kv_heads // busy
    return min(max(power_of_two(wanted), 64), 2048)
