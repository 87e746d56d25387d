"""Speculation on = off on the embedded model: 60 seeded pairs over the matrix, under `invariant` in float32.

A pair is (setting, drafter, prompt, seed); the prompts repeat phrases, so that lookups find drafts.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.first.matrix import METHODS, SETTINGS
from draftproof import LLM, SamplingParams
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.pruned import layers_of
from draftproof.targets.embedded import embedded_folder
from draftproof.targets.hf import HFTarget
from draftproof.targets.load import load_target

NUM_TOKENS = 16
PROMPTS = [
    "Write this again: the red kettle and the blue kettle stand beside the green kettle and the red kettle.",
    "Repeat the list. apples, pears, plums, apples, pears, plums, apples, pears,",
    "What is a lighthouse for?",
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return",
]
PAIRS = [
    (setting, METHODS[(index + repeat) % 3], PROMPTS[(index + repeat) % 4], 100 * index + repeat)
    for repeat in range(4)
    for index, setting in enumerate(SETTINGS)
]


def test_there_are_sixty_pairs_and_every_cell_of_drafter_and_setting_family_is_met():
    assert len(PAIRS) == 60
    assert {setting for setting, *_ in PAIRS} == set(SETTINGS)
    assert {method for _, method, *_ in PAIRS} == set(METHODS)


@pytest.fixture(scope="module")
def engines():
    target, tokenizer = load_target(dtype="float32", invariant=True)
    plain = LLM.from_target(target, tokenizer)
    whole = AutoModelForCausalLM.from_pretrained(str(embedded_folder()), dtype=torch.float32)
    draft = HFTarget(layers_of(whole, (0, 14, 29)))
    drafters = {
        "draft_model": DraftModelDrafter(draft, plain.chain, target_tokenizer=tokenizer, draft_tokenizer=tokenizer),
        "ngram": None,
        "suffix": None,
    }
    speculative = {
        method: LLM.from_target(
            target,
            tokenizer,
            speculative_config={
                "method": "ngram" if drafter else method,
                "num_speculative_tokens": 5,
                "draft_length": "fixed",
            },
            drafter=drafter,
        )
        for method, drafter in drafters.items()
    }
    return plain, speculative


@pytest.mark.parametrize(("setting", "method", "prompt", "seed"), PAIRS)
def test_on_is_off(engines, setting, method, prompt, seed):
    plain, speculative = engines
    params = SamplingParams(seed=seed, max_tokens=NUM_TOKENS, **SETTINGS[setting])
    expected = plain.generate(prompt, params)[0].outputs[0]
    found = speculative[method].generate(prompt, params)[0].outputs[0]
    assert found.token_ids == expected.token_ids
    assert found.text == expected.text and found.finish_reason == expected.finish_reason


def test_drafts_were_accepted_on_the_way(engines):
    """Equality shows something: on a repeating prompt drafts are accepted and their entries kept."""
    _, speculative = engines
    for method in ("ngram", "suffix"):
        output = speculative[method].generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=24))[0]
        assert output.metrics.speculative_decoding["num_accepted_draft_tokens"] > 4
