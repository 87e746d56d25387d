"""Trees: each node's logits equal those of its root-to-node chain, and rewinding keeps the chosen path."""

import pytest
import torch

from draftproof.errors import ParameterError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from draftproof.targets.masks import node_depths
from tests.targets.models import ARCHITECTURES, plain_logits, random_ids, score_one, tiny_model

PARENTS = (-1, 0, 0, 1, 2, 2, 4, 6, 3)
TOLERANCE = 1e-4  # as in test_hf.py


def path_to(node: int) -> list[int]:
    path = [node]
    while PARENTS[path[-1]] >= 0:
        path.append(PARENTS[path[-1]])
    return path[::-1]


@pytest.mark.parametrize("eager", [False, True], ids=["sdpa", "eager"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nodes_equal_their_chains(name: str, eager: bool) -> None:
    model, context, tokens = tiny_model(name), random_ids(21), random_ids(len(PARENTS), seed=4)
    if eager:
        model.set_attn_implementation("eager")
    target = HFTarget(model, num_slots=2)
    target.prefill(0, context)
    target.prefill(1, context[:6])
    rows, _ = target.score([ScoreRequest(0, tuple(tokens), PARENTS), ScoreRequest(1, tuple(context[6:10]))])
    for node in range(len(PARENTS)):
        want = plain_logits(model, context + [tokens[index] for index in path_to(node)])[-1]
        assert torch.allclose(rows[node], want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("node", [0, 3, 5, 7, 8])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_rewind_to_a_path(name: str, node: int) -> None:
    model, context, tokens = tiny_model(name), random_ids(21), random_ids(len(PARENTS), seed=4)
    target = HFTarget(model)
    target.prefill(0, context)
    score_one(target, 0, tokens, PARENTS)
    path = path_to(node)
    target.rewind(0, 21 + len(path), path)
    text = context + [tokens[index] for index in path] + random_ids(12, seed=8)
    got = score_one(target, 0, text[21 + len(path) :])
    assert torch.allclose(got, plain_logits(model, text)[21 + len(path) :], rtol=0, atol=TOLERANCE)


def test_rewind_may_keep_part_of_a_path_or_none() -> None:
    model, context, tokens = tiny_model("llama"), random_ids(10), random_ids(len(PARENTS), seed=4)
    target = HFTarget(model)
    target.prefill(0, context)
    score_one(target, 0, tokens, PARENTS)
    target.rewind(0, 12, [0, 2, 4])
    text = [*context, tokens[0], tokens[2], 5]
    assert torch.allclose(score_one(target, 0, [5]), plain_logits(model, text)[-1:], rtol=0, atol=TOLERANCE)
    target.rewind(0, 12)
    score_one(target, 0, tokens, PARENTS)
    target.rewind(0, 7)
    assert torch.allclose(
        score_one(target, 0, [5])[0], plain_logits(model, [*context[:7], 5])[-1], rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("path", [[1], [0, 3], [0, 2, 1], [0, 9], [0, 1, 3, 8, 8]])
def test_only_a_path_of_the_tree_is_kept(path: list[int]) -> None:
    target = HFTarget(tiny_model("llama"))
    score_one(target, 0, random_ids(len(PARENTS)), PARENTS)
    with pytest.raises(ParameterError, match="a path from the first token down the tree"):
        target.rewind(0, len(path), path)


def test_a_tree_is_rewound_before_the_next_call_and_never_cut_blindly() -> None:
    target = HFTarget(tiny_model("llama"))
    score_one(target, 0, random_ids(4), (-1, 0, 0, 1))
    with pytest.raises(ParameterError, match="rewound to a path"):
        score_one(target, 0, [1])
    with pytest.raises(ParameterError, match="path"):
        target.rewind(0, 3)
    with pytest.raises(ParameterError, match="length"):
        target.rewind(0, 3, [0, 2])
    target.rewind(0, 2)
    score_one(target, 0, [1])


@pytest.mark.parametrize("parents", [(0, 0, 0), (-1, -1, 0), (-1, 1, 0), (-1, 2, 1), (-1, 0)])
def test_parents_must_be_one_rooted_tree(parents: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError, match="parents"):
        score_one(HFTarget(tiny_model("llama")), 0, [1, 2, 3], parents)


def test_depths() -> None:
    assert node_depths(PARENTS) == [0, 1, 1, 2, 2, 2, 3, 4, 3]
