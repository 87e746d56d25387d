"""Trees in lanes: each path in a block of its own, as far on in it as its chain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof.targets import branches, driven, invariant, packed
from draftproof.targets.base import ScoreRequest
from draftproof.targets.branches import Room, branch_mask, branches_of, find_rooms
from draftproof.targets.hf import HFTarget
from draftproof.targets.lanes import BLOCK, MOST_BLOCKS, Lanes, lanes_of
from draftproof.targets.masks import RowLayout
from draftproof.targets.shapes import KEY_STEP, StepShapes
from tests.targets.models import attention_in_pieces, random_ids, score_one, tiny_model
from tests.targets.test_paths import ancestors, random_tree

ROOMS = [Room(size, size, in_lanes=True) for size in range(64, 705, 64)]


def trees(start: int) -> list[RowLayout]:
    made = [random_tree(seed, 3 + seed % 14) for seed in range(24)]
    layouts = [RowLayout.of(start, len(parents), parents) for parents in made]
    return [tree for tree in layouts if lanes_of(tree) is not None]


@pytest.mark.parametrize("start", [1, 31, 32, 33, 50, 90, 110])
def test_a_node_sees_its_chain_with_whole_blocks_moved(start: int) -> None:
    layouts = trees(start)
    assert layouts
    for tree in layouts:
        assert tree.parents is not None
        found = branches_of(tree, ROOMS)
        assert found is not None and found.lanes is not None and not found.others
        kept = found.lanes
        # What the cache holds: the context, its entries in the first lane again in each, and the nodes'.
        content: dict[int, object] = {column: column for column in range(start)}
        for lane, nodes in enumerate(kept.nodes):
            moved = kept.size * lane
            content |= {column + moved: column for column in range(kept.first, start)}
            content |= {start + moved + depth: ("node", int(node)) for depth, node in enumerate(nodes)}
        mask = branch_mask(tree, found, len(tree.parents) + 1, None, 1, torch.float32, torch.device("cpu"))[0, 0]
        for node, column in enumerate(found.own):
            assert content[column] == ("node", node)
            seen = (mask[node] == 0).nonzero().flatten().tolist()
            chain = [*range(start), *(("node", above) for above in ancestors(tree.parents, node))]
            assert [content[column] for column in seen] == chain
            # As far on in its block, and the blocks in their order.
            assert [column % BLOCK for column in seen] == [position % BLOCK for position in range(len(chain))]
            blocks = [column // BLOCK for column in seen]
            assert blocks == sorted(blocks) and len(set(blocks)) == -(-len(chain) // BLOCK)
            assert [int(found.positions[column]) for column in seen] == list(range(len(chain)))
        assert torch.equal(mask[-1], mask[len(tree.parents) - 1])
        assert found.stop == found.room.key_length >= kept.stop > found.room.key_length - KEY_STEP
        assert found.own[0] == start


def test_a_window_counts_positions() -> None:
    tree = RowLayout.of(50, 4, (-1, 0, 0, 2))
    found = branches_of(tree, ROOMS)
    assert found is not None
    mask, full = (
        branch_mask(tree, found, 4, window, 1, torch.float32, torch.device("cpu"))[0, 0] for window in (3, None)
    )
    for row, other in zip(mask, full, strict=True):
        assert (row == 0).nonzero().flatten().tolist() == (other == 0).nonzero().flatten().tolist()[-3:]


def test_which_trees_have_no_lanes() -> None:
    def layout(start: int, num_leaves: int) -> RowLayout:
        return RowLayout.of(start, 1 + num_leaves, (-1, *[0] * num_leaves))

    assert lanes_of(layout(10, MOST_BLOCKS)) is not None and lanes_of(layout(10, MOST_BLOCKS + 1)) is None
    # Paths through two blocks take two each.
    assert lanes_of(layout(31, MOST_BLOCKS // 2)) is not None and lanes_of(layout(31, MOST_BLOCKS // 2 + 1)) is None
    long = RowLayout.of(20, 2 * BLOCK + 1, tuple(range(-1, 2 * BLOCK)))
    assert lanes_of(long) is None
    # As many keys as there are rooms for.
    assert branches_of(layout(10, 4), ROOMS[:1]) is None and branches_of(layout(10, 2), ROOMS[:1]) is not None


def test_rooms_are_those_to_which_blocks_may_be_moved() -> None:
    asked = []

    def moves(chain: int, most: int, num_before: int) -> int:
        asked.append((chain, most, num_before))
        return 320

    assert find_rooms(256, 256, lambda *_: False, moves) == (Room(256, 256, True), Room(320, 320, True))
    assert asked == [(256, 256 + KEY_STEP * -(-BLOCK * (MOST_BLOCKS - 1) // KEY_STEP), 0)]
    assert find_rooms(384, 384, lambda *_: False, moves) == ()
    # In a tree that ends in another step some chains read fewer keys: the moves have to be right for both.
    fewer = {(192, 0): 256, (256, 1): 320}
    found = find_rooms(192, 256, lambda *_: False, lambda chain, _, num_before: fewer[chain, num_before])
    assert found == (Room(256, 256, True),)


def test_entries_are_written_to_every_lane() -> None:
    tree = RowLayout.of(40, 4, (-1, 0, 0, 2))
    kept = lanes_of(tree)
    assert kept is not None and kept.nodes.tolist() == [[0, 1, 1], [0, 2, 3]]
    offset = 7
    buffer = torch.zeros(2, 3, 200, 5)
    buffer[:, :, offset : offset + 40] = torch.arange(1, 41)[:, None].float()
    kept.repeat_context(buffer, offset)
    kept.places(buffer, offset)[:] = 100 + torch.from_numpy(kept.nodes)[:, :, None].float()
    assert torch.equal(buffer[0, 0], buffer[1, 2])
    found = buffer[0, 0, :, 0].tolist()
    expected = [0.0] * offset + [*map(float, range(1, 41)), 100.0, 101.0, 101.0]
    expected += [0.0] * 21 + [*map(float, range(33, 41)), 100.0, 102.0, 103.0]
    assert found == expected + [0.0] * (200 - len(expected))


@pytest.fixture
def in_pieces(monkeypatch) -> None:
    """Attention as tile products sum it; which is asked about nothing but moves."""
    monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_in_pieces(BLOCK))
    monkeypatch.setattr(driven, "attention_agrees", lambda *_: True)


PARENTS = ((-1, 0, 0), (-1, 0, 0, 1, 2, 2), (-1, 0, 0, 0, 1, 4, 5, 2, 2), (-1, *[0] * MOST_BLOCKS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_tree_in_lanes_has_the_bits_of_its_chains_and_leaves_nothing(in_pieces, name: str, dtype) -> None:
    target = HFTarget(tiny_model(name, dtype), num_slots=2, invariant=True)
    assert type(target.shapes) is StepShapes and target.keeps_branches_in_place
    text, num_in_lanes = random_ids(300), 0
    assert target.num_branches(0, 4) is None
    for turn, start in enumerate((1, 16, 40, 77, 100, 127, 250)):
        parents = PARENTS[turn % len(PARENTS)]
        nodes = random_ids(len(parents), seed=turn)
        target.release(0)
        target.release(1)
        # So that the slot isn't the first one in the cache.
        target.prefill(1, text[:20])
        target.prefill(0, text[:start])
        requests = [ScoreRequest(0, tuple(nodes), parents)]
        if turn == 4:
            requests.append(ScoreRequest(1, (3, 4)))
        rows = target.score(requests)[0]
        num_in_lanes += sum(found.lanes is not None for found in target._contents.branches.values())
        assert not target._contents.branches or turn != 4
        path = [len(parents) - 1]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        target.rewind(0, start + len(path), path)
        for group in target.cache.groups:
            offset, size = target.cache.extents.offsets[0], target.cache.extents.sizes[0]
            for buffer in (group.keys, group.values):
                assert not buffer[:, :, offset + target.length(0) : offset + size].any()
        after = score_one(target, 0, [3, 5])
        target.release(0)
        target.prefill(0, text[:start])
        chain = [score_one(target, 0, [token]) for token in [*(nodes[node] for node in path), 3, 5]]
        assert torch.equal(torch.cat([rows[path], after]), torch.cat(chain)), start
    assert num_in_lanes >= 4


def without_context(self: Lanes, buffer: torch.Tensor, offset: int) -> None:
    return None


def whole_lanes(self: Lanes, num_columns: int) -> np.ndarray:
    own = np.array(self.own)[:, None]
    columns = np.arange(num_columns)
    return (columns < self.first) | (columns // BLOCK == own // BLOCK)


def all_in_the_first(tree: RowLayout) -> Lanes | None:
    """A node's ancestors are in the lane that had them first, and not in its own."""
    found = lanes_of(tree)
    if found is not None:
        nodes = found.nodes.copy()
        for lane in range(1, len(nodes)):
            nodes[lane][nodes[lane] == nodes[0]] = found.nodes[lane, -1]
        found = Lanes(found.first, found.size, found.start, nodes, found.own)
    return found


@pytest.mark.parametrize("mutant", ["no context", "whole lanes", "no ancestors"])
def test_wrong_lanes_are_found_and_copies_are_made(monkeypatch, in_pieces, mutant: str) -> None:
    assert HFTarget(tiny_model("llama"), invariant=True).keeps_branches_in_place
    if mutant == "no context":
        monkeypatch.setattr(Lanes, "repeat_context", without_context)
    elif mutant == "whole lanes":
        monkeypatch.setattr(Lanes, "seen", whole_lanes)
    else:
        monkeypatch.setattr(branches, "lanes_of", all_in_the_first)
    target = HFTarget(tiny_model("llama"), invariant=True)
    assert not target.keeps_branches_in_place and isinstance(target.shapes, StepShapes)
    assert invariant.probe(target, target.shapes) is None
