"""A tree in the slot's own columns where a kernel adds up keys in blocks: each path has a block of its own, a lane.

Tile products (AMX) add up 32 weighted values by themselves, and then the blocks' sums one after another. So a key can't
leave the block that its chain has it in, but the block as a whole can stand further on. A lane is such a block with one
path through the tree, or two blocks for a tree that ends in another one than it begins in: what the context has in the
block that the tree begins in, and all nodes of the path. The first lane is where the chain's blocks are, the others lie
behind it. Whether moved blocks have the same sum is asked of the kernel (`key_order.moves_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.targets.masks import RowLayout

BLOCK: Final = 32
"""Keys that are added up by themselves."""
MOST_BLOCKS: Final = 16
"""Of all lanes. A pass over a tree of 16 nodes on two threads of a Xeon: 49 ms so, 59 with copies of the keys."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Columns are counted from the slot's first.

    first: column of the first lane. size: columns of a lane. start: of the tree's first node. nodes [lanes, depths]:
    whose entries are written from the lane's column start - first on; behind a path's end its last node's, which nobody
    sees. own: each node's column, in the first lane that has it.
    """

    first: int
    size: int
    start: int
    nodes: NDArray[np.int64]
    own: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The end of the last lane."""
        return self.first + self.size * len(self.nodes)

    def places(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """[layers, heads, lanes, depths, dim] where `nodes` are written. buffer [layers, heads, columns, dim], in which
        the slot's first column is `offset`."""
        begin, depths = self.start - self.first, self.nodes.shape[1]
        return self._by_lane(buffer, offset)[:, :, :, begin : begin + depths]

    def repeat_context(self, buffer: torch.Tensor, offset: int) -> None:
        """Copy what the context has in the first lane to the others. As for `places`."""
        entries = self._by_lane(buffer, offset)[:, :, :, : self.start - self.first]
        entries[:, :, 1:] = entries[:, :, :1]

    def seen(self, num_columns: int) -> NDArray[np.bool_]:
        """[nodes, num_columns] which columns a node sees: what lies before all lanes, and its lane up to itself."""
        columns, own = np.arange(num_columns), np.array(self.own)[:, None]
        begin = own - (own - self.first) % self.size
        found: NDArray[np.bool_] = (columns < self.first) | ((columns >= begin) & (columns <= own))
        return found

    def positions(self, num_columns: int) -> NDArray[np.int64]:
        """[num_columns] of the tokens whose entries are there."""
        columns = np.arange(num_columns)
        columns[self.first :] = self.first + (columns[self.first :] - self.first) % self.size
        return columns

    def _by_lane(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """[layers, heads, lanes, size, dim], a view."""
        begin = offset + self.first
        columns: Any = buffer[:, :, begin : begin + self.size * len(self.nodes)]
        lanes: torch.Tensor = columns.unflatten(2, (len(self.nodes), self.size))
        return lanes


def lanes_of(tree: RowLayout) -> Lanes | None:
    """None for a tree of more than two blocks, or whose paths would have more than `MOST_BLOCKS` in all."""
    parents, start = tree.parents, tree.start
    assert parents is not None
    first = start - start % BLOCK
    num_depths = 1 + max(tree.positions) - start
    inner = set(parents)
    leaves = [node for node in range(len(parents)) if node not in inner]
    num_blocks = -(-(start + num_depths - first) // BLOCK)
    if num_blocks > 2 or num_blocks * len(leaves) > MOST_BLOCKS:
        return None
    size = num_blocks * BLOCK
    nodes, own = np.empty((len(leaves), num_depths), dtype=np.int64), [0] * len(parents)
    for lane in range(len(leaves) - 1, -1, -1):
        node = leaves[lane]
        depth = tree.positions[node] - start
        nodes[lane, depth:] = node
        while node >= 0:
            nodes[lane, depth] = node
            own[node] = start + size * lane + depth
            node, depth = parents[node], depth - 1
    return Lanes(first, size, start, nodes, tuple(own))
