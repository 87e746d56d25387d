"""A tree under invariant execution, in the slot's own columns: one call of attention over the context as it lies.

A node's entry has the column of its position, or lies a number of whole strides further on: no other node of its
depth has that column, and no node lies before its parent. So a node adds up the keys of its chain in their order, with
masked ones in between, which add exact zeros. Up to which column the sum stays the same if a chain is spread so, and
over how many columns it may be taken, is asked of the kernel (`key_order.spreads`). Where it adds up keys in blocks,
whole blocks are moved (`lanes.py`). Nodes for which there is no column get copies of their chains' keys (`paths.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.targets.extents import num_columns as num_slot_columns
from draftproof.targets.lanes import BLOCK, MOST_BLOCKS, Lanes, lanes_of
from draftproof.targets.masks import RowLayout, additive
from draftproof.targets.shapes import KEY_STEP

CHUNK: Final = 16
"""Columns: as many as the widest vector has numbers that are added up side by side."""
STRIDE: Final = 2 * CHUNK
"""Columns that a node is moved by: softmax adds up every other vector in a sum of its own."""
MOST_WIDER: Final = 2
"""Steps of keys by which a tree may read more than its chains."""
MOST_WIDER_IN_LANES: Final = -(-BLOCK * (MOST_BLOCKS - 1) // KEY_STEP)
"""The same where each path has blocks of its own."""


@dataclass(frozen=True, slots=True)
class Room:
    """key_length: keys that a tree reads. stop: where its nodes' columns end. in_lanes: whole blocks are moved."""

    key_length: int
    stop: int
    in_lanes: bool = False


Rooms = Callable[[int, int], Sequence[Room]]
"""By the chains' key lengths, that of the first node and that of the deepest one: see `find_rooms`."""
Spreads = Callable[[int, Room], bool]
"""See `key_order.spreads`."""
MovesBlocks = Callable[[int, int, int], int]
"""See `key_order.moves_blocks`."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Columns are counted from the slot's first.

    own: each node's. placed: the nodes that are computed in place, over the keys of `room`. others: those that aren't;
    their entries lie behind the keys of `room`. seen [nodes, room's keys]: which columns a placed node sees. positions
    [room's keys]: of the entries there that anyone sees. stop: the end of the last entry, or of what is read.
    """

    room: Room
    own: tuple[int, ...]
    placed: tuple[int, ...]
    others: tuple[int, ...]
    seen: NDArray[np.bool_]
    positions: NDArray[np.int64]
    lanes: Lanes | None = None

    @property
    def stop(self) -> int:
        return max(self.room.key_length, *self.own) + 1 if self.others else self.room.key_length


def find_rooms(first: int, last: int, spreads: Spreads, moves_blocks: MovesBlocks) -> tuple[Room, ...]:
    """The rooms of a tree whose chains read `first` to `last` keys, the smallest first; none where no chain can be
    spread."""
    rooms: list[Room] = []
    if last - first > KEY_STEP:
        return ()
    most = min(num_slot_columns(last), last + MOST_WIDER * KEY_STEP)
    for stop in range(last, most + 1, KEY_STEP):
        for key_length in range(stop, most + 1, KEY_STEP):
            room = Room(key_length, stop)
            if all(spreads(chain, room) for chain in {first, last}):
                rooms.append(room)
                break
    if rooms:
        return tuple(rooms)
    most = last + MOST_WIDER_IN_LANES * KEY_STEP
    widest = moves_blocks(last, most, int(first < last))
    if first < last:
        widest = min(widest, moves_blocks(first, most, 0))
    return tuple(Room(length, length, in_lanes=True) for length in range(last, widest + 1, KEY_STEP))


def branches_of(tree: RowLayout, rooms: Sequence[Room]) -> Branches | None:
    """In the smallest room that has a column for every node, else in the largest. None where there is no room."""
    if rooms and rooms[0].in_lanes:
        return _in_lanes(tree, rooms)
    found = None
    for room in rooms:
        found = _in_strides(tree, room)
        if not found.others:
            break
    return None if found is None or 0 in found.others else found


def _in_lanes(tree: RowLayout, rooms: Sequence[Room]) -> Branches | None:
    lanes = lanes_of(tree)
    room = None if lanes is None else next((room for room in rooms if room.stop >= lanes.stop), None)
    if lanes is None or room is None:
        return None
    every = tuple(range(len(lanes.own)))
    seen, positions = lanes.seen(room.key_length), lanes.positions(room.key_length)
    return Branches(room, lanes.own, every, (), seen, positions, lanes)


def _in_strides(tree: RowLayout, room: Room) -> Branches:
    assert tree.parents is not None
    moves = zip(tree.positions, _moves(tree, room.stop), strict=True)
    own, placed, others = _columns([None if move is None else at + STRIDE * move for at, move in moves], room)
    seen = np.zeros((len(own), room.key_length), dtype=np.bool_)
    for node in placed:
        parent = tree.parents[node]
        if parent < 0:
            seen[node, : tree.start] = True
        else:
            seen[node] = seen[parent]
        seen[node, own[node]] = True
    positions = np.arange(room.key_length)
    positions[[own[node] for node in placed]] = [tree.positions[node] for node in placed]
    return Branches(room, own, placed, others, seen, positions)


def _columns(found: Sequence[int | None], room: Room) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """All nodes' columns, those that have one in the room, and the others, behind it."""
    placed = tuple(node for node, column in enumerate(found) if column is not None)
    others = tuple(node for node, column in enumerate(found) if column is None)
    behind = dict(zip(others, range(room.key_length, room.key_length + len(others)), strict=True))
    return tuple(behind[node] if column is None else column for node, column in enumerate(found)), placed, others


def num_branches(start: int, num_entries: int, rooms: Sequence[Room]) -> int:
    """How many branches of `num_entries` tokens from `start` on have columns; one does anyway."""
    return max([1, *(_num_places(start + num_entries - 1, room.stop) for room in rooms)])


def _num_places(position: int, stop: int) -> int:
    """Columns that a node at a position may have."""
    return max(-(-(stop - position) // STRIDE), 0)


def _moves(tree: RowLayout, stop: int) -> list[int | None]:
    """Of each node, by how many strides it is moved: no less than its parent, and no two of one depth alike. None where
    there is no such column before `stop`. Of those that could have a place the one with the most leaves has it."""
    assert tree.parents is not None
    moves: list[int | None] = [None] * len(tree.parents)
    leaves = _num_leaves(tree.parents)
    by_depth: dict[int, list[int]] = {}
    for node, position in enumerate(tree.positions):
        by_depth.setdefault(position, []).append(node)
    for position, nodes in sorted(by_depth.items()):
        waiting = sorted(nodes, key=lambda node: (-leaves[node], node))
        for place in range(_num_places(position, stop)):
            free = [node for node in waiting if _may_have(tree.parents[node], moves, place)]
            if free:
                moves[free[0]] = place
                waiting.remove(free[0])
    return moves


def _may_have(parent: int, moves: Sequence[int | None], place: int) -> bool:
    if parent < 0:
        return True
    above = moves[parent]
    return above is not None and above <= place


def _num_leaves(parents: Sequence[int]) -> list[int]:
    """Of each node's subtree."""
    inner = set(parents)
    leaves = [int(node not in inner) for node in range(len(parents))]
    for node in range(len(parents) - 1, 0, -1):
        leaves[parents[node]] += leaves[node]
    return leaves


def branch_mask(
    tree: RowLayout,
    branches: Branches,
    width: int,
    window: int | None,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """The mask [1, 1, groups · width, key length] of the placed nodes in their order: a node sees the context and its
    ancestors, `window` positions back in a sliding-window layer. Padding sees what the last node sees."""
    seen = branches.seen
    if window is not None:
        seen = seen & (np.array(tree.positions)[:, None] - branches.positions < window)
    rows = [*branches.placed, *branches.placed[-1:] * (width - len(branches.placed))]
    return additive(torch.from_numpy(seen[rows]).to(device), dtype).repeat(groups, 1)[None, None]
