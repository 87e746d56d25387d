"""A tree under invariant execution: each node adds up its keys in the order of its own chain.

So a node reads keys in which its ancestors lie in the columns where the chain has them. Nodes of one path from the root
read the same ones: the tree is cut into such pieces of a few nodes, each with a copy of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from draftproof.targets.masks import RowLayout, additive


@dataclass(frozen=True, slots=True)
class Paths:
    """nodes: of each piece, from the root's side on. columns [pieces, depths]: where in the slot the ancestors of the
    piece's last node lie, by their depth; past that node a column of its own, which nobody sees."""

    nodes: list[list[int]]
    columns: torch.Tensor


def paths_of(tree: RowLayout, nodes: Iterable[int], most: int, own: Sequence[int] | None = None) -> Paths:
    """Cut these nodes of the tree into pieces of at most `most`. own: each node's column, by default one after another
    from the tree's first on."""
    assert tree.parents is not None
    left, pieces, columns = set(nodes), [], []
    num_depths = max(tree.positions) - tree.start + 1
    for node in sorted(left, key=lambda node: -tree.positions[node]):
        if node not in left:
            continue
        path = [node]
        while tree.parents[path[-1]] >= 0:
            path.append(tree.parents[path[-1]])
        piece = [ancestor for ancestor in path if ancestor in left][:most]
        left.difference_update(piece)
        pieces.append(piece[::-1])
        chain = [tree.start + ancestor if own is None else own[ancestor] for ancestor in reversed(path)]
        columns.append(chain + list(range(tree.start + len(chain), tree.start + num_depths)))
    return Paths(pieces, torch.tensor(columns))


def path_mask(
    positions: Sequence[Sequence[int]],
    key_length: int,
    window: int | None,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """positions [pieces, width]: of the queries. The mask [pieces, 1, groups · width, key_length]: a query sees the
    columns up to its position, `window` of them in a sliding-window layer."""
    own = torch.tensor(positions, device=device)[:, :, None]
    columns = torch.arange(key_length, device=device)
    allowed = columns <= own
    if window is not None:
        allowed = allowed & (own - columns < window)
    mask = additive(allowed, dtype)[:, None]
    return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


class CopiedKeys:
    """The keys of a tree's pieces, copied layer by layer into one buffer.

    What is beyond the columns of the tree is zero; nobody sees it.
    """

    def __init__(self, paths: Paths, start: int, key_length: int, offset: int, device: torch.device) -> None:
        """start: the slot's length, `offset` its first column. key_length: keys of each piece."""
        num_depths = min(paths.columns.shape[1], key_length - start)
        self._columns = (paths.columns[:, :num_depths] + offset).flatten().to(device)
        self._size, self._key_length = (len(paths.nodes), num_depths), key_length
        self._before, self._begin = start, offset
        self._buffers: dict[tuple[int, int, torch.dtype, int], torch.Tensor] = {}

    def copy(self, cached: torch.Tensor, which: int) -> torch.Tensor:
        """cached: keys or values of a layer, [kv_heads, columns, dim]. which: the buffer, one for keys, one for values.

        Returns [pieces, kv_heads, key_length, dim], valid until the next call for that buffer."""
        heads, dim = cached.shape[0], cached.shape[2]
        kind = (heads, dim, cached.dtype, which)
        found = self._buffers.get(kind)
        if found is None:
            found = self._buffers[kind] = cached.new_zeros(self._size[0], heads, self._key_length, dim)
        found[:, :, : self._before] = cached[:, self._begin : self._begin + self._before]
        tail = cached.index_select(1, self._columns).view(heads, *self._size, dim)
        found[:, :, self._before : self._before + self._size[1]] = tail.transpose(0, 1)
        return found
