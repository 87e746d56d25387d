"""Trees in place: each node sees its chain's keys, at columns that lie whole strides from the chain's."""

from __future__ import annotations

import pytest
import torch

from draftproof.targets.branches import CHUNK, STRIDE, branch_mask, branches_of, num_branches
from draftproof.targets.masks import RowLayout
from tests.targets.test_paths import ancestors, random_tree


def everywhere(key_length: int, column: int) -> bool:
    return True


@pytest.mark.parametrize("start", [1, 11, 16, 31])
@pytest.mark.parametrize("seed", range(6))
def test_a_node_sees_the_keys_of_its_chain_a_number_of_strides_further_on(seed: int, start: int) -> None:
    parents = random_tree(seed, 3 + 2 * seed)
    tree, key_length = RowLayout.of(start, len(parents), parents), 512
    branches = branches_of(tree, key_length, everywhere)
    assert branches is not None and branches.stop % CHUNK == 0
    # What stands in each column: a context position, or a node.
    content: dict[int, object] = {column: ("context", column) for column in range(start)}
    content |= {to: ("context", column) for column, to in branches.context}
    assert len({column for _, column in branches.written}) == len(branches.written)
    content |= {column: node for node, column in branches.written}
    width = 4 * -(-len(parents) // 4)
    mask = branch_mask(tree, branches, width, key_length, None, 2, torch.float32, torch.device("cpu"))
    assert mask.shape == (1, 1, 2 * width, key_length) and torch.equal(mask[..., :width, :], mask[..., width:, :])
    for node in range(len(parents)):
        seen = (mask[0, 0, node] == 0).nonzero().flatten().tolist()
        chain = [("context", column) for column in range(start)] + ancestors(parents, node)
        assert [content[column] for column in seen] == chain
        assert [column % STRIDE for column in seen] == [position % STRIDE for position in range(len(chain))]
        assert content[branches.own[node]] == node and branches.own[node] < branches.stop
    chains = [ancestors(parents, node) for node in range(len(parents))]
    longest = max(map(len, chains))
    # One of the longest is where a chain would be, and need not be moved.
    where = [[branches.own[node] for node in chain] for chain in chains if len(chain) == longest]
    assert list(range(start, start + longest)) in where


def test_a_window_counts_positions() -> None:
    parents = (-1, 0, 0, 2)
    tree = RowLayout.of(19, len(parents), parents)
    branches = branches_of(tree, 256, everywhere)
    assert branches is not None
    mask = branch_mask(tree, branches, 4, 256, 3, 1, torch.float32, torch.device("cpu"))[0, 0]
    assert [int((row == 0).sum()) for row in mask] == [3, 3, 3, 3]
    full = branch_mask(tree, branches, 4, 256, None, 1, torch.float32, torch.device("cpu"))[0, 0]
    for row, other in zip(mask, full, strict=True):
        assert (row == 0).nonzero().flatten().tolist() == (other == 0).nonzero().flatten().tolist()[-3:]


def test_branches_stay_before_the_column_at_which_the_sum_changes() -> None:
    """Of two branches that begin in chunk 2, the second is moved to chunk 4."""
    tree = RowLayout.of(2 * CHUNK + 1, 3, (-1, 0, 0))
    asked: list[tuple[int, int]] = []

    def moves(at: int) -> bool:
        def chunk_moves(key_length: int, column: int) -> bool:
            asked.append((key_length, column))
            return column != at

        return branches_of(tree, 256, chunk_moves) is not None

    assert moves(4 * CHUNK) and moves(2 * CHUNK) and not moves(3 * CHUNK)
    assert set(asked) == {(256, 3 * CHUNK)}


def test_a_tree_that_does_not_fit_is_left_to_copies() -> None:
    assert branches_of(RowLayout.of(255, 3, (-1, 0, 0)), 256, everywhere) is None
    # The second branch's chunk lies 32 columns from the first's.
    assert branches_of(RowLayout.of(224, 3, (-1, 0, 0)), 256, everywhere) is None
    # Two entries after 15 of a chunk take two chunks a branch, after 14 one.
    assert branches_of(RowLayout.of(223, 3, (-1, 0, 0)), 256, everywhere) is None
    assert branches_of(RowLayout.of(222, 3, (-1, 0, 0)), 256, everywhere) is not None


@pytest.mark.parametrize("start", range(1, 250, 7))
@pytest.mark.parametrize("depth", [2, 5])
def test_as_many_branches_fit_as_are_counted(start: int, depth: int) -> None:
    def chunk_moves(key_length: int, column: int) -> bool:
        return column % 128 != 0

    counted = num_branches(start, depth, 256, chunk_moves)
    for num in range(2, 10):
        # A root, and as many paths from it.
        parents = [-1]
        for _ in range(num):
            parents += [0, *range(len(parents), len(parents) + depth - 2)]
        tree = RowLayout.of(start, len(parents), tuple(parents))
        fits = branches_of(tree, 256, chunk_moves) is not None
        assert fits == (num <= counted and start + depth <= 256)
