"""A tree under invariant execution, in the slot's own columns: one call of attention over the context as it lies.

A node's entry has the column of its position, or lies a number of whole strides further on: no other node of its
depth has that column, and no node lies before its parent. So a node adds up the keys of its chain in their order, with
masked ones in between, which add exact zeros. Up to which column the sum stays the same if a chain is spread so, and
over how many columns it may be taken, is asked of the kernel (`summation.spreads`). Nodes for which there is no column
get copies of their chains' keys (`paths.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from draftproof.targets.extents import num_columns as num_slot_columns
from draftproof.targets.masks import RowLayout, additive
from draftproof.targets.shapes import KEY_STEP

CHUNK: Final = 16
"""Columns: as many as the widest vector has numbers that are added up side by side."""
STRIDE: Final = 2 * CHUNK
"""Columns that a node is moved by: softmax adds up every other vector in a sum of its own."""
MOST_WIDER: Final = 2
"""Steps of keys by which a tree may read more than its chains."""


@dataclass(frozen=True, slots=True)
class Room:
    """key_length: keys that a tree reads. stop: where its nodes' columns end."""

    key_length: int
    stop: int


Rooms = Callable[[int, int], Sequence[Room]]
"""By the chains' key lengths, that of the first node and that of the deepest one: see `find_rooms`."""
Spreads = Callable[[int, Room], bool]
"""See `summation.spreads`."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Columns are counted from the slot's first.

    own: each node's. placed: the nodes that are computed in place, over the keys of `room`. others: those that aren't;
    their entries lie behind the keys of `room`. stop: the end of the last entry.
    """

    room: Room
    own: tuple[int, ...]
    placed: tuple[int, ...]
    others: tuple[int, ...]

    @property
    def stop(self) -> int:
        return max(self.own) + 1


def find_rooms(first: int, last: int, spreads: Spreads) -> tuple[Room, ...]:
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
    return tuple(rooms)


def branches_of(tree: RowLayout, rooms: Sequence[Room], num_columns: int) -> Branches | None:
    """In the smallest room that has a column for every node, else in the largest. None where there is no room, or the
    entries don't fit. num_columns: that the slot has."""
    assert tree.parents is not None
    for room in rooms:
        moves = _moves(tree, room.stop)
        others = [node for node, found in enumerate(moves) if found is None]
        if not others or room == rooms[-1]:
            break
    if not rooms or room.key_length + len(others) > num_columns or 0 in others:
        return None
    behind = dict(zip(others, range(room.key_length, num_columns), strict=False))
    own = [
        behind[node] if found is None else position + STRIDE * found
        for node, (position, found) in enumerate(zip(tree.positions, moves, strict=True))
    ]
    placed = [node for node, found in enumerate(moves) if found is not None]
    return Branches(room, tuple(own), tuple(placed), tuple(others))


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
    assert tree.parents is not None
    allowed = torch.zeros(len(tree.parents), branches.room.key_length, dtype=torch.bool)
    positions = torch.arange(branches.room.key_length)
    for node in branches.placed:
        parent, column = tree.parents[node], branches.own[node]
        if parent < 0:
            allowed[node, : tree.start] = True
        else:
            allowed[node] = allowed[parent]
        allowed[node, column] = True
        positions[column] = tree.positions[node]
    rows = [*branches.placed, *branches.placed[-1:] * (width - len(branches.placed))]
    if window is not None:
        own = torch.tensor(tree.positions)[:, None]
        allowed &= own - positions < window
    return additive(allowed[rows].to(device), dtype).repeat(groups, 1)[None, None]
