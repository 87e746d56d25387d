"""Attention over a static forward's tables: the kernel where there is one, else the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from draftproof.targets.static import reference
from draftproof.targets.static.tables import Bucket, Kind, Tables

LOG2_E: Final = 1.4426950408889634
LEAST_QUERIES: Final = 16
"""Of a matrix product on the device."""
MOST_QUERIES: Final = 64
"""Queries of a row, heads that share a key head counted: longer runs are cut into several rows."""
INVARIANT_SPLIT: Final = 128
MERGED_TOGETHER: Final = 8
"""Splits of a merging program's step."""
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
class Placing:
    """What a joined projection is normed and rotated with: cos and sin [tokens, dim]; weight and eps of the norms of
    queries and of keys, or none."""

    cos: torch.Tensor
    sin: torch.Tensor
    norms: tuple[tuple[torch.Tensor, float], tuple[torch.Tensor, float]] | None


class Attention:
    """Attention of all layers of one shape in forwards of one bucket.

    invariant: splits and tiles don't depend on the bucket. is_whole: no request is cut into several rows.
    """

    def __init__(
        self, shape: Shape, bucket: Bucket, device: torch.device, *, invariant: bool, is_whole: bool = False
    ) -> None:
        self.shape, self.bucket = shape, bucket
        self._uses_kernel = device.type == "cuda"
        # A norm's sum in another kernel may have another order: under `invariant` all forwards place alike.
        self._may_place = is_whole and bucket.kind == Kind.CHAIN and not invariant
        width = most_tokens(shape.groups) if invariant else bucket.width
        self.block_m = max(power_of_two(width * shape.groups), LEAST_QUERIES)
        self.split = INVARIANT_SPLIT if invariant else _split(shape, bucket, self.block_m)
        self.num_splits = -(-bucket.num_keys // self.split)

    @property
    def places(self) -> bool:
        """Does the kernel place queries, keys and values itself?"""
        return self._uses_kernel and self._may_place

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: Tables, scale: float
    ) -> torch.Tensor:
        """query [tokens, heads, dim], contiguous, over one layer's [kv_heads, columns, dim]; [tokens, heads, dim]."""
        if not self._uses_kernel:
            return reference.attend(query, keys, values, tables, scale, self.shape.window)
        return self.launch(query, keys, values, tables, scale)

    def launch(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        tables: Tables,
        scale: float,
        placing: Placing | None = None,
    ) -> torch.Tensor:
        """The kernel. placing: given, `query` is the joined projection, of which keys and values are placed, too."""
        # Imported where it is needed: Triton is there on machines with a GPU alone.
        from draftproof.targets.static.device.attention import merge_kernel, split_kernel

        shape, bucket = self.shape, self.bucket
        none = (query, 0.0)
        cos, sin, norms = (query, query, None) if placing is None else (placing.cos, placing.sin, placing.norms)
        (query_norm, query_eps), (key_norm, key_eps) = norms or (none, none)
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
            "SPLIT": self.split,
        }
        split_kernel[(bucket.num_rows, shape.kv_heads, self.num_splits)](
            query, keys, values, tables.rows, tables.positions, tables.links, out, sums, stats,
            cos, sin, query_norm, key_norm, query_eps, key_eps,
            scale * LOG2_E, self.num_splits, query.stride(0), keys.stride(0), keys.stride(1),
            values.stride(0), values.stride(1),
            **sizes, DIM=shape.key_dim, DIM_PADDED=max(power_of_two(shape.key_dim), LEAST_QUERIES),
            BLOCK_M=self.block_m, BLOCK_N=min(64, self.split), KIND=int(bucket.kind), MERGES=self.num_splits > 1,
            PLACES=placing is not None, NORMS=norms is not None, TOKENS=power_of_two(-(-self.block_m // shape.groups)),
            LINKS=max(bucket.num_links, 1), WINDOW=shape.window or 0,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", num_warps=4,
        )  # fmt: skip
        if self.num_splits > 1:
            merge_kernel[(bucket.num_rows, shape.kv_heads, bucket.width * shape.groups)](
                tables.rows, out, sums, stats, self.num_splits, **sizes,
                TOGETHER=MERGED_TOGETHER, num_warps=4,
            )  # fmt: skip
        return out


def _split(shape: Shape, bucket: Bucket, block_m: int) -> int:
    """Keys of a program: many enough to be worth the merging, few enough to keep the device busy.

    The more queries, the more there is to merge.
    """
    busy = BUSY if block_m == LEAST_QUERIES else BUSY // 2
    wanted = bucket.num_keys * bucket.num_rows * shape.kv_heads // busy
    return min(max(power_of_two(wanted), 64), 2048)
