"""A tree under invariant execution, in the slot's own columns: one call of attention over the context as it lies.

Each branch (a path from the root to a leaf) has its entries in the order of its chain, in a run of columns of its own
behind the context: the first branch where the chain would have them, the others a number of whole strides further on.
A run begins with what the chain's chunk holds of the context. So a node adds up the keys of its chain, with masked ones
in between, which add exact zeros; that the sum stays the same when its last part lies a few strides further on is asked
of the kernel (`summation.chunks_move`). Where a tree doesn't fit before the next place at which it doesn't, its
branches get copies of all keys (`paths.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from draftproof.targets.masks import RowLayout, additive

CHUNK: Final = 16
"""Columns: as many as the widest vector has numbers that are added up side by side."""
STRIDE: Final = 2 * CHUNK
"""Columns that a run is moved by: softmax adds up every other vector in a sum of its own."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Columns are counted from the slot's first. base: the first of the chunk that the tree begins in.

    runs, own: of each node, the first column of its branch's run, and its own column there. written: all (node, column)
    at which an entry is needed; nodes that branches share have several. context: (from, to) of the context's entries in
    other branches' runs. stop: the end of the last run.
    """

    base: int
    runs: tuple[int, ...]
    own: tuple[int, ...]
    written: tuple[tuple[int, int], ...]
    context: tuple[tuple[int, int], ...]
    stop: int


def branches_of(tree: RowLayout, key_length: int, chunk_moves: Callable[[int, int], bool]) -> Branches | None:
    """None where the branches don't fit. chunk_moves(key length, column): see `summation.chunks_move`."""
    assert tree.parents is not None
    if max(tree.positions) >= key_length:
        return None
    base = tree.start - tree.start % CHUNK
    runs, own = [-1] * len(tree.parents), [-1] * len(tree.parents)
    written: list[tuple[int, int]] = []
    context: list[tuple[int, int]] = []
    begin = stop = base
    for path in _paths(tree):
        if begin > base:
            context += [(column, begin + column - base) for column in range(base, tree.start)]
        for node in path:
            column = begin + tree.positions[node] - base
            written.append((node, column))
            if own[node] < 0:
                runs[node], own[node] = begin, column
        length = tree.start - base + len(path)
        stop, begin = begin + _rounded(length, CHUNK), begin + _rounded(length, STRIDE)
    if not _moves(base, stop, key_length, chunk_moves):
        return None
    return Branches(base, tuple(runs), tuple(own), tuple(written), tuple(context), stop)


def num_branches(start: int, num_entries: int, key_length: int, chunk_moves: Callable[[int, int], bool]) -> int:
    """How many branches of `num_entries` tokens from `start` on fit; one does anyway."""
    base = start - start % CHUNK
    length, num = start - base + num_entries, 1
    while _moves(base, base + num * _rounded(length, STRIDE) + _rounded(length, CHUNK), key_length, chunk_moves):
        num += 1
    return num


def _rounded(length: int, step: int) -> int:
    return step * -(-length // step)


def _moves(base: int, stop: int, key_length: int, chunk_moves: Callable[[int, int], bool]) -> bool:
    """Can what lies behind `base` lie anywhere before `stop`, whole strides further on?"""
    columns = range(base + CHUNK, stop - STRIDE + 1, CHUNK)
    return stop <= key_length and all(chunk_moves(key_length, column) for column in columns)


def _paths(tree: RowLayout) -> list[list[int]]:
    """From the root to each leaf, the longest first."""
    assert tree.parents is not None
    parents, paths = tree.parents, []
    for leaf in set(range(len(parents))).difference(parents):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return sorted(paths, key=lambda path: (-len(path), path))


def branch_mask(
    tree: RowLayout,
    branches: Branches,
    width: int,
    key_length: int,
    window: int | None,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """The mask [1, 1, groups · width, key_length]: a node sees the columns before the tree's first chunk and those of
    its run up to its own, `window` positions back in a sliding-window layer. Padding sees what the last node sees."""
    num_padding = width - len(tree.positions)
    table = [[*values, *values[-1:] * num_padding] for values in (branches.runs, branches.own, tree.positions)]
    runs, own, positions = torch.tensor(table, device=device)[:, :, None]
    columns = torch.arange(key_length, device=device)
    before = columns < branches.base
    allowed = before | ((columns >= runs) & (columns <= own))
    if window is not None:
        key_positions = torch.where(before, columns, columns - runs + branches.base)
        allowed = allowed & (positions - key_positions < window)
    return additive(allowed, dtype).repeat(groups, 1)[None, None]
