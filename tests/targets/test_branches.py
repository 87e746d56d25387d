"""Trees in place: each node sees its chain's keys in their order, each a number of whole strides from the chain's."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.targets.branches import STRIDE, Room, branch_mask, branches_of, find_rooms, num_branches
from draftproof.targets.masks import RowLayout
from draftproof.targets.shapes import KEY_STEP, StepShapes
from tests.targets.test_paths import ancestors, random_tree

ROOMS = [Room(128, 128), Room(256, 192)]


@pytest.mark.parametrize("start", [1, 11, 60, 90, 120])
@pytest.mark.parametrize("seed", range(8))
def test_a_node_sees_the_keys_of_its_chain_whole_strides_further_on(seed: int, start: int) -> None:
    parents = random_tree(seed, 3 + 4 * seed)
    tree = RowLayout.of(start, len(parents), parents)
    branches = branches_of(tree, ROOMS)
    assert branches is not None and branches.room in ROOMS
    assert branches.stop == max(branches.room.key_length, 1 + max(branches.own))
    assert sorted([*branches.placed, *branches.others]) == list(range(len(parents)))
    # Whoever is left out has a column behind all that is read.
    assert all(branches.room.key_length <= branches.own[node] < branches.stop for node in branches.others)
    assert all(branches.own[node] < branches.room.stop for node in branches.placed)
    assert len(set(branches.own)) == len(parents) and min(branches.own) == start
    content: dict[int, object] = {column: ("context", column) for column in range(start)}
    content |= {column: node for node, column in enumerate(branches.own)}
    width = 4 * -(-len(branches.placed) // 4)
    mask = branch_mask(tree, branches, width, None, 2, torch.float32, torch.device("cpu"))
    assert mask.shape == (1, 1, 2 * width, branches.room.key_length)
    assert torch.equal(mask[..., :width, :], mask[..., width:, :])
    for row, node in enumerate(branches.placed):
        seen = (mask[0, 0, row] == 0).nonzero().flatten().tolist()
        chain = [("context", column) for column in range(start)] + ancestors(parents, node)
        assert [content[column] for column in seen] == chain
        assert [column % STRIDE for column in seen] == [position % STRIDE for position in range(len(chain))]
    # Padding sees what the last one sees.
    assert all(
        torch.equal(row, mask[0, 0, len(branches.placed) - 1]) for row in mask[0, 0, len(branches.placed) : width]
    )


def test_a_window_counts_positions() -> None:
    parents = (-1, 0, 0, 2)
    tree = RowLayout.of(19, len(parents), parents)
    branches = branches_of(tree, ROOMS)
    assert branches is not None and not branches.others
    mask, full = (
        branch_mask(tree, branches, 4, window, 1, torch.float32, torch.device("cpu"))[0, 0] for window in (3, None)
    )
    for row, other in zip(mask, full, strict=True):
        assert (row == 0).nonzero().flatten().tolist() == (other == 0).nonzero().flatten().tolist()[-3:]


def test_the_smallest_room_with_a_column_for_every_node_is_taken() -> None:
    """At positions 100 and 101, of 128 columns one each is free, of 192 three."""
    small, large = ROOMS
    for num_leaves, room, num_others in ((1, small, 0), (2, large, 0), (3, large, 0), (4, large, 1), (9, large, 6)):
        tree = RowLayout.of(100, 1 + num_leaves, (-1, *[0] * num_leaves))
        branches = branches_of(tree, ROOMS)
        assert branches is not None and branches.room == room and len(branches.others) == num_others


def test_spare_columns_hold_a_tree_that_ends_near_a_step() -> None:
    """Two places a depth at least, where a step of keys alone may leave one."""
    tree = RowLayout.of(170, 9, (-1, 0, 1, 0, 2, 1, 2, 4, 4))
    for spare_from, others in ((None, True), (3 * KEY_STEP, False)):
        length = StepShapes(spare_from=spare_from).key_length(170)
        branches = branches_of(tree, [Room(length, length)])
        assert branches is not None and bool(branches.others) == others


def test_of_siblings_the_one_with_the_most_leaves_comes_first() -> None:
    """A path of one leaf in the first column would push the three leaves of the other out."""
    tree = RowLayout.of(90, 6, (-1, 0, 0, 2, 2, 2))
    branches = branches_of(tree, [Room(192, 192)])
    assert branches is not None and not branches.others and branches.own[2] == 91
    assert branches.own[1] == 91 + STRIDE and [branches.own[node] for node in (3, 4, 5)] == [92, 124, 156]


def test_a_tree_without_room_is_left_to_copies() -> None:
    tree = RowLayout.of(100, 9, (-1, *[0] * 8))
    assert branches_of(tree, []) is None
    # Of 8 leaves 3 have columns, 5 none: those stand behind what is read.
    found = branches_of(tree, [Room(192, 192)])
    assert found is not None and len(found.others) == 5 and found.stop == 192 + 5
    assert branches_of(RowLayout.of(192, 2, (-1, 0)), [Room(192, 192)]) is None


@pytest.mark.parametrize("start", range(1, 190, 7))
@pytest.mark.parametrize("depth", [2, 5])
def test_as_many_branches_fit_as_are_counted(start: int, depth: int) -> None:
    rooms = [Room(192, 192)]
    counted = num_branches(start, depth, rooms)
    for num in range(2, 10):
        # A root, and as many paths from it.
        parents = [-1]
        for _ in range(num):
            parents += [0, *range(len(parents), len(parents) + depth - 2)]
        branches = branches_of(RowLayout.of(start, len(parents), tuple(parents)), rooms)
        fits = branches is not None and not branches.others
        assert fits == (num <= counted and start + depth <= 192)


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_of_as_many_leaves_as_are_counted_fits(seed: int) -> None:
    source = random.Random(seed)
    start, rooms = source.randrange(1, 120), [Room(192, 192)]
    parents = random_tree(seed, 3 + seed % 12)
    num_leaves = len(set(range(len(parents))) - set(parents))
    tree = RowLayout.of(start, len(parents), parents)
    depth = 1 + max(tree.positions) - start
    branches = branches_of(tree, rooms)
    assert branches is not None
    assert not branches.others or num_leaves > num_branches(start, depth, rooms)


def never(*_: int) -> int:
    return 0


def test_rooms_are_those_in_which_every_chain_can_be_spread() -> None:
    def spreads(chain: int, room: Room) -> bool:
        """Blocks of up to 192 keys, as many as it takes, of one size."""
        asked.append((chain, room))
        return blocks(chain) == blocks(room.key_length) and room.stop <= blocks(room.key_length) * -(-chain // 192)

    def blocks(key_length: int) -> int:
        num = -(-key_length // 192)
        return -(-key_length // num)

    asked: list[tuple[int, Room]] = []
    assert find_rooms(3 * KEY_STEP, 5 * KEY_STEP, lambda *_: True, never) == () and not asked
    for first, last in ((64, 64), (64, 128), (256, 256), (256, 320)):
        rooms = find_rooms(first, last, spreads, never)
        assert all(spreads(chain, room) for room in rooms for chain in (first, last))
        assert [room.stop for room in rooms] == sorted({room.stop for room in rooms})
    # No more columns than a slot has, no fewer than the deepest chain reads, two steps more at most.
    every = find_rooms(64, 128, lambda *_: True, never)
    assert [room.stop for room in every] == [128, 192, 256] and find_rooms(256, 256, lambda *_: True, never) == (
        Room(256, 256),
    )
    assert [room.stop for room in find_rooms(64, 64, lambda *_: True, never)] == [64, 128, 192]
    # Where a room's keys have to be more than its columns.
    assert find_rooms(64, 64, lambda _, room: room.key_length == 192, never)[0] == Room(192, 64)


def test_no_room_and_one_branch_is_left() -> None:
    assert num_branches(50, 4, []) == 1 and num_branches(190, 4, [Room(192, 192)]) == 1
