"""Speculation on = off, bit for bit, under `invariant`: the full matrix on a tiny random model, fp32 and bf16.

64 tokens, 20 prompts a cell, through real forwards of a transformers model with a cache that is
rewound. The model's random head is scaled so that drafts are accepted and rejected in turn.
"""

import random

import pytest
import torch

from benchmarks.first.matrix import METHODS, SETTINGS
from draftproof import LLM, SamplingParams
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.pruned import layers_of
from draftproof.targets.hf import HFTarget
from tests.targets.models import VOCAB_SIZE, tiny_model
from tests.threads import one_thread

NUM_PROMPTS, NUM_TOKENS, NUM_SLOTS = 20, 64, 10


def prompts():
    source = random.Random(11)
    for _ in range(NUM_PROMPTS):
        phrase = [source.randrange(VOCAB_SIZE) for _ in range(5)]
        yield [source.randrange(VOCAB_SIZE) for _ in range(source.randrange(1, 12))] + phrase + phrase


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def target(request):
    return HFTarget(tiny_model("llama", request.param), num_slots=NUM_SLOTS, invariant=True)


@pytest.fixture(scope="module")
def plain_ids(target):
    cache = {}

    def of(setting):
        if setting not in cache:
            cache[setting] = [o.outputs[0].token_ids for o in generate(LLM.from_target(target, None), setting)]
        return cache[setting]

    return of


def generate(llm, setting):
    shared = {"max_tokens": NUM_TOKENS, "detokenize": False, "ignore_eos": True}
    many = [SamplingParams(seed=seed, **shared, **SETTINGS[setting]) for seed in range(NUM_PROMPTS)]
    return llm.generate(list(prompts()), many)


def speculative(target, method):
    config = {"method": method, "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    drafter = None
    if method == "draft_model":
        config["method"] = "ngram"
        smaller = HFTarget(layers_of(target.model, (0, 1)), num_slots=NUM_SLOTS)
        drafter = DraftModelDrafter(
            smaller, LLM.from_target(target, None).chain, target_tokenizer=None, draft_tokenizer=None
        )
    return LLM.from_target(target, None, speculative_config=config, drafter=drafter)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_on_is_off(target, plain_ids, method, setting):
    outputs = generate(speculative(target, method), setting)
    assert [output.outputs[0].token_ids for output in outputs] == plain_ids(setting)
    drafted = sum(output.metrics.speculative_decoding["num_draft_tokens"] for output in outputs)
    accepted = sum(output.metrics.speculative_decoding["num_accepted_draft_tokens"] for output in outputs)
    # Without drafts, or without rejections that rewind the cache, equality would show nothing.
    assert drafted - accepted > 50


def test_drafts_are_accepted_somewhere_by_every_method(target):
    for method in METHODS:
        outputs = generate(speculative(target, method), "T=0.0 no filter")
        assert sum(o.metrics.speculative_decoding["num_accepted_draft_tokens"] for o in outputs) > 50
