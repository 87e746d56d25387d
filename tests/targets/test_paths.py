"""A tree cut into pieces of paths: each node once, with its own ancestors where its chain has them."""

from __future__ import annotations

import random

import pytest
import torch

from draftproof.targets.masks import RowLayout
from draftproof.targets.paths import CopiedKeys, paths_of

START = 11


def ancestors(parents: tuple[int, ...], node: int) -> list[int]:
    """From the root to the node itself."""
    found = [node]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found[::-1]


def random_tree(seed: int, size: int) -> tuple[int, ...]:
    source = random.Random(seed)
    return (-1, *(source.randrange(max(0, node - 5), node) for node in range(1, size)))


@pytest.mark.parametrize("most", [1, 3, 4, 16])
@pytest.mark.parametrize("seed", range(6))
def test_each_node_once_beside_its_ancestors(seed: int, most: int) -> None:
    parents = random_tree(seed, 1 + 6 * seed)
    paths = paths_of(RowLayout.of(START, len(parents), parents), range(len(parents)), most)
    assert sorted(node for piece in paths.nodes for node in piece) == list(range(len(parents)))
    for piece, columns in zip(paths.nodes, paths.columns.tolist(), strict=True):
        assert len(piece) <= most
        for node in piece:
            chain = ancestors(parents, node)
            assert columns[: len(chain)] == [START + ancestor for ancestor in chain]


def test_a_chain_is_cut_into_as_few_pieces_as_it_needs() -> None:
    tree = RowLayout.of(START, 10, tuple(range(-1, 9)))
    assert [len(piece) for piece in paths_of(tree, range(10), 4).nodes] == [4, 4, 2]


def test_copied_keys_are_those_of_the_chain() -> None:
    parents, offset, key_length = (-1, 0, 0, 1, 2, 4), 7, START + 9
    tree = RowLayout.of(START, len(parents), parents)
    paths = paths_of(tree, range(len(parents)), 4)
    cached = torch.randn(2, offset + key_length, 3, generator=torch.Generator().manual_seed(3))
    copied = CopiedKeys(paths, START, key_length, offset, cached.device)
    for which, buffer in ((0, cached), (1, -cached), (0, 2 * cached)):
        found = copied.copy(buffer, which)
        assert found.shape == (len(paths.nodes), 2, key_length, 3)
        for piece, keys in zip(paths.nodes, found, strict=True):
            chain = [offset + START + node for node in ancestors(parents, piece[-1])]
            assert torch.equal(keys[:, : START + len(chain)], buffer[:, [*range(offset, offset + START), *chain]])
    assert torch.isfinite(found).all()
