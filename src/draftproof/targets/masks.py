"""Positions and additive masks of one forward.

A query attends to a cached column if the column is its own, an ancestor's, or was cached before the forward, and, in
a sliding-window layer, if it lies less than `window` positions back. Columns and positions differ only inside a tree:
a node's column is its place in the token list, its position the depth.

Masked entries hold the lowest finite number of the dtype, not -inf: the exponential of it is exactly 0 beside any
attended entry, and every query attends at least to itself, so no row is a quotient 0/0.

Under invariant execution a tree's node must add up its keys in the order of its own chain: see `paths.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.errors import ParameterError


def check_parents(parents: Sequence[int], num_tokens: int) -> None:
    """A tree is one rooted tree whose parents stand before their children; raises ParameterError otherwise."""
    if len(parents) != num_tokens:
        raise ParameterError("parents", tuple(parents), f"one entry per token ({num_tokens})")
    for index, parent in enumerate(parents):
        if (index == 0 and parent != -1) or (index > 0 and not 0 <= parent < index):
            raise ParameterError("parents", tuple(parents), "-1 for the first token, an earlier index for the others")


def node_depths(parents: Sequence[int]) -> list[int]:
    """Depth of each node; the first has depth 0."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


@dataclass(frozen=True, slots=True)
class RowLayout:
    """One row of a forward: where its tokens stand, before padding to the forward's width.

    start: the first column; positions: one per token; parents: None for a chain.
    """

    start: int
    positions: tuple[int, ...]
    parents: tuple[int, ...] | None

    @staticmethod
    def of(start: int, num_tokens: int, parents: Sequence[int] | None) -> RowLayout:
        depths = range(num_tokens) if parents is None else node_depths(parents)
        return RowLayout(start, tuple(start + depth for depth in depths), None if parents is None else tuple(parents))


def _tree_visibility(rows: Sequence[RowLayout], width: int) -> torch.Tensor:
    """[rows, width, width] booleans: may query i of the row see token j of the row? Padding sees all before it."""
    visible = torch.ones(width, width, dtype=torch.bool).tril().repeat(len(rows), 1, 1)
    for index, row in enumerate(rows):
        if row.parents is None:
            continue
        table = visible[index]
        for node, parent in enumerate(row.parents):
            table[node] = table[parent] if parent >= 0 else False
            table[node, node] = True
    return visible


def additive_mask(
    rows: Sequence[RowLayout],
    width: int,
    key_length: int,
    window: int | None,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """The mask [rows, 1, groups · width, key_length] of one kind of layer (window None: full attention).

    The rows of the mask repeat `groups` times, for attention that stacks the query heads of a group.
    """
    starts = torch.tensor([row.start for row in rows], device=device)
    columns = torch.arange(key_length, device=device)
    own = starts[:, None] + torch.arange(width, device=device)
    positions = own
    allowed = columns <= own[:, :, None]
    if any(row.parents is not None for row in rows):
        padded = [[*row.positions, *range(row.start + len(row.positions), row.start + width)] for row in rows]
        positions = torch.tensor(padded, device=device)
        visible = _tree_visibility(rows, width).to(device)
        offsets = columns - starts[:, None]
        inside = (offsets >= 0) & (offsets < width)
        index = offsets.clamp(0, width - 1)[:, None, :].expand(-1, width, -1)
        allowed = torch.where(inside[:, None, :], visible.gather(2, index), offsets[:, None, :] < 0)
        if window is not None:
            key_positions = torch.where(inside, positions.gather(1, offsets.clamp(0, width - 1)), columns)
            allowed = allowed & (positions[:, :, None] - key_positions[:, None, :] < window)
    elif window is not None:
        allowed = allowed & (own[:, :, None] - columns < window)
    mask = additive(allowed, dtype)[:, None]
    return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where allowed, the dtype's lowest finite number elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, torch.finfo(dtype).min)
