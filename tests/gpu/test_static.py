"""Static forwards on a CUDA device: captured or not to the same bits, against packed ones, and replay in bfloat16."""

import random

import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from tests.targets.models import VOCAB_SIZE, tiny_model
from tests.targets.static.forwards import CASES, IDS, LENGTHS, filled, scored, windowed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["llama", "qwen3", "windowed", "gemma3"])
@pytest.mark.parametrize("invariant", [False, True])
def test_logits_are_those_of_packed_forwards(name, invariant):
    model = (windowed() if name == "windowed" else tiny_model(name)).cuda()
    packed = filled(model, static=False)
    static = filled(model, static=True, invariant=invariant, **({"width": 96} if invariant else {}))
    assert static._runner.static._captures
    for requests in CASES.values():
        expected, found = scored(packed, requests), scored(static, requests)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.max() - expected.min()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_has_the_bits_of_the_calls(dtype):
    target = filled(tiny_model("qwen3", dtype).cuda(), static=True)
    replayed = [scored(target, requests) for requests in CASES.values()]
    target._runner.static._captures = False
    target._runner.static._steps.clear()
    assert all(
        torch.equal(scored(target, requests), rows) for requests, rows in zip(CASES.values(), replayed, strict=True)
    )


def test_graphs_that_share_memory_do_not_disturb_each_other():
    target = filled(tiny_model("llama", torch.bfloat16).cuda(), static=True)
    first = {name: scored(target, requests) for name, requests in CASES.items()}
    for name in (*CASES, *reversed(CASES)):
        assert torch.equal(scored(target, CASES[name]), first[name])


def test_taps_are_kept_from_replays():
    target = filled(tiny_model("llama").cuda(), static=True)
    store = target.request_taps([0, 2, 3])
    target.release(0)
    for begin in range(0, 20, 2):
        target.score([ScoreRequest(0, tuple(IDS[begin : begin + 2]))])
    plain = target.model(input_ids=torch.tensor([IDS[:20]]).cuda(), output_hidden_states=True, use_cache=False)
    expected = torch.cat([plain.hidden_states[tap][0] for tap in (0, 2, 3)], dim=-1)
    torch.testing.assert_close(store.read(0, 0, 20), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("width", [16, 64])
def test_on_is_off_in_bfloat16_whatever_shares_the_batch(width):
    target = HFTarget(tiny_model("qwen3", torch.bfloat16).cuda(), num_slots=6, invariant=True, width=width)
    source = random.Random(5)
    prompts = [[source.randrange(VOCAB_SIZE) for _ in range(6)] * 2 for _ in range(12)]
    params = [SamplingParams(seed=seed, max_tokens=40, detokenize=False, temperature=0.8) for seed in range(12)]
    config = {"method": "ngram", "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    plain = LLM.from_target(target, None).generate(prompts, params)
    speculative = LLM.from_target(target, None, speculative_config=config)
    together = speculative.generate(prompts, params)
    alone = [speculative.generate([prompt], s)[0] for prompt, s in zip(prompts, params, strict=True)]
    for outputs in (together, alone):
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in together) > 0


def test_a_context_of_thousands_of_tokens():
    model = tiny_model("llama", max_position_embeddings=8192).cuda()
    ids = [int(token) for token in torch.randint(0, VOCAB_SIZE, (5000,), generator=torch.Generator().manual_seed(4))]
    target = HFTarget(model, static=True)
    target.prefill(0, ids[:4990])
    found = target.score([ScoreRequest(0, tuple(ids[4990:]))])[0]
    expected = model(input_ids=torch.tensor([ids]).cuda(), use_cache=False).logits[0, 4990:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.max() - expected.min()))
    assert target.length(0) == 5000


def test_what_a_rewind_leaves_behind_is_never_read():
    target = filled(tiny_model("qwen3").cuda(), static=True)
    for requests in CASES.values():
        expected = scored(target, requests)
        for request in requests:
            length, offset = LENGTHS[request.slot], target.cache.extents.offsets[request.slot]
            for group in target.cache.groups:
                group.keys[:, :, offset + length : offset + target.cache.extents.sizes[request.slot]] = torch.nan
                group.values[:, :, offset + length : offset + target.cache.extents.sizes[request.slot]] = torch.nan
        assert torch.equal(scored(target, requests), expected)
