"""Static forwards on a CPU: the same logits as packed ones, the same bits whatever shares them."""

import random

import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.targets.base import ScoreRequest
from draftproof.targets.shapes import FixedShapes
from draftproof.targets.static.steps import round_up
from draftproof.targets.static.tables import Kind
from tests.targets.models import ARCHITECTURES, VOCAB_SIZE, tiny_model
from tests.targets.static.forwards import CASES, IDS, LENGTHS, TREE, filled, scored, windowed


@pytest.mark.parametrize("name", [*ARCHITECTURES, "windowed"])
def test_logits_are_those_of_packed_forwards(name):
    model = windowed() if name == "windowed" else tiny_model(name)
    packed, static = filled(model, static=False), filled(model, static=True)
    assert static.is_static
    for requests in CASES.values():
        expected, found = scored(packed, requests), scored(static, requests)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.max() - expected.min()))


def test_which_families_are_lean():
    lean = {name: filled(tiny_model(name), static=True)._runner.lean is not None for name in ARCHITECTURES}
    assert lean == {"llama": True, "qwen3": True, "mistral": True, "gemma3": False}


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_invariant_bits_do_not_depend_on_what_shares_the_forward(name):
    target = filled(tiny_model(name), static=True, invariant=True)
    assert isinstance(target.shapes, FixedShapes)
    alone = scored(target, [ScoreRequest(0, tuple(IDS[3:8]))])
    beside = scored(target, [ScoreRequest(2, tuple(IDS[:9])), ScoreRequest(0, tuple(IDS[3:8]))])
    assert torch.equal(beside[9:], alone)
    one_by_one = []
    for token in IDS[3:8]:
        one_by_one.append(target.score([ScoreRequest(0, (token,))])[0].clone())
    assert torch.equal(torch.cat(one_by_one), alone)


def test_invariant_trees_have_the_bits_of_their_chains():
    target = filled(tiny_model("llama"), static=True, invariant=True)
    tokens = IDS[3:10]
    tree = scored(target, [ScoreRequest(0, tuple(tokens), TREE)])
    path = (0, 2, 3, 6)
    chain = scored(target, [ScoreRequest(0, tuple(tokens[node] for node in path))])
    assert torch.equal(tree[list(path)], chain)


@pytest.mark.parametrize("invariant", [False, True])
def test_on_is_off(invariant):
    target = filled(tiny_model("llama"), static=True, invariant=invariant)
    source = random.Random(5)
    prompts = [[source.randrange(VOCAB_SIZE) for _ in range(6)] * 2 for _ in range(6)]
    params = [SamplingParams(seed=seed, max_tokens=20, detokenize=False, temperature=0.8) for seed in range(6)]
    config = {"method": "ngram", "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    for slot in range(3):
        target.release(slot)
    plain = LLM.from_target(target, None).generate(prompts, params)
    speculative = LLM.from_target(target, None, speculative_config=config).generate(prompts, params)
    assert [o.outputs[0].token_ids for o in speculative] == [o.outputs[0].token_ids for o in plain]
    assert sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in speculative) > 0


def test_taps_are_those_of_the_models_own_modules():
    model = tiny_model("llama")
    packed, static = filled(model, static=False), filled(model, static=True)
    stores = []
    for target in (packed, static):
        target.release(0)
        stores.append(target.request_taps([0, 2, 3]))
        target.score([ScoreRequest(0, tuple(IDS[:20]))])
        target.score([ScoreRequest(0, tuple(IDS[20:23]))])
    assert stores[0].lengths == stores[1].lengths == [23, 0, 0]
    torch.testing.assert_close(stores[1].read(0, 0, 23), stores[0].read(0, 0, 23), rtol=0, atol=1e-4)


def test_padding_writes_nothing():
    target = filled(tiny_model("llama"), static=True)
    before = [(group.keys.clone(), group.values.clone()) for group in target.cache.groups]
    target.score([ScoreRequest(1, tuple(IDS[:5]))])
    first = target.cache.extents.offsets[1] + LENGTHS[1]
    for group, (keys, values) in zip(target.cache.groups, before, strict=True):
        for now, then in ((group.keys, keys), (group.values, values)):
            changed = (now != then).any(dim=-1).any(dim=0).any(dim=0).nonzero().flatten().tolist()
            assert changed == list(range(first, first + 5))


def test_rows_that_are_not_wanted_are_not_computed():
    target = filled(tiny_model("llama"), static=True)
    rows = target.score([ScoreRequest(0, tuple(IDS[:30]), num_rows=2), ScoreRequest(1, tuple(IDS[:3]), num_rows=0)])
    assert [row.shape[0] for row in rows] == [2, 0]
    for slot in (0, 1):
        target.rewind(slot, LENGTHS[slot])
    whole = target.score([ScoreRequest(0, tuple(IDS[:30])), ScoreRequest(1, tuple(IDS[:3]))])[0]
    torch.testing.assert_close(rows[0], whole[-2:])


def test_logits_of_a_call_outlive_its_other_forwards():
    target = filled(tiny_model("llama"), static=True, invariant=True)
    requests = [ScoreRequest(slot, tuple(IDS[slot : slot + 12])) for slot in range(3)]
    together = [row.clone() for row in target.score(requests)]
    for slot in range(3):
        target.rewind(slot, LENGTHS[slot])
    for request, rows in zip(requests, together, strict=True):
        assert torch.equal(target.score([request])[0], rows)


def test_few_buckets():
    assert [round_up(count) for count in (1, 2, 3, 9, 16, 17, 33, 60, 65, 129, 256)] == [
        1, 2, 4, 16, 16, 24, 48, 64, 96, 192, 256,
    ]  # fmt: skip
    target = filled(tiny_model("llama"), static=True)
    steps = target._runner.static
    assert steps is not None
    steps._steps.clear()
    for length in range(1, 60):
        scored(target, [ScoreRequest(0, tuple(IDS[:length]))])
    assert len(steps._steps) <= 12
    assert all(bucket.kind == Kind.CHAIN for bucket in steps._steps)


@pytest.mark.parametrize("invariant", [False, True])
def test_what_a_rewind_leaves_behind_is_never_read(invariant):
    target = filled(tiny_model("qwen3"), static=True, invariant=invariant, **({"width": 96} if invariant else {}))
    for requests in CASES.values():
        expected = scored(target, requests)
        for request in requests:
            length, offset = LENGTHS[request.slot], target.cache.extents.offsets[request.slot]
            for group in target.cache.groups:
                group.keys[:, :, offset + length : offset + target.cache.extents.sizes[request.slot]] = torch.nan
                group.values[:, :, offset + length : offset + target.cache.extents.sizes[request.slot]] = torch.nan
        assert torch.equal(scored(target, requests), expected)
