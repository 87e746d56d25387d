"""T27 and T28 through the engine: masks that depend on the drafts before a row, against plain decoding by hand."""

import math

import numpy as np
import pytest

from draftproof import LLM, SamplingParams
from draftproof.core import Key, Purpose
from draftproof.laws import Dense
from draftproof.noise import KeyedNoise
from draftproof.targets.toy import TableTarget
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.letters import Letters
from tests.engine.tables import table

TEXTS = ["</s>", "a", "b", "c", "d", "e", " "]  # the space has an id beyond the vocabulary: words begin without one
PROMPT = [1, 2]
DRAFTERS = {
    "none": None,
    "same law": lambda: TableDrafter(table(0), ragged=False),
    "other law": lambda: TableDrafter(table(1)),
    "trees": lambda: TreeDrafter(table(0)),
}


def by_hand(params, num_tokens, stop_ids):
    """Each row: the table's law, masked by what this output alone says, then the keyed race at the position."""
    target, noise, output = table(0), KeyedNoise(params.seed), []
    words = [tuple(TEXTS.index(letter) for letter in word) for word in params.bad_words]
    while len(output) < num_tokens:
        weights = np.array([float(p) for p in target.probs((*PROMPT, *output))], dtype=np.float32)
        masked = {word[-1] for word in words if tuple(output[len(output) - len(word) + 1 :]) == word[:-1]}
        if len(output) < params.min_tokens:
            masked |= set(stop_ids)
        weights[list(masked)] = 0.0
        position = len(PROMPT) + len(output)
        output.append(Dense(weights / weights.sum()).draw(noise, Key(Purpose.TARGET, position)))
        if output[-1] in stop_ids and len(output) > params.min_tokens:
            break
    return tuple(output)


def llm_of(drafter):
    target = TableTarget(table(0), eos_token_ids=[0])
    tokenizer = Letters(TEXTS, specials=[0])
    if DRAFTERS[drafter] is None:
        return LLM.from_target(target, tokenizer)
    config = {"num_speculative_tokens": 6, "draft_length": "fixed"}
    return LLM.from_target(target, tokenizer, speculative_config=config, drafter=DRAFTERS[drafter]())


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_t27_min_tokens_masks_every_ending_id_row_by_row(drafter):
    llm = llm_of(drafter)
    for least in range(0, 13):
        params = SamplingParams(seed=least, min_tokens=least, max_tokens=30, stop_token_ids=[3])
        output = llm.generate([PROMPT], params)[0].outputs[0]
        assert output.token_ids == by_hand(params, 30, {0, 3})
        assert len(output.token_ids) > least or output.finish_reason == "length"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_t28_bad_words_of_several_tokens_are_banned_where_they_would_be_complete(drafter):
    """The beginning of a word may lie before the block, inside it, or on a branch of a tree."""
    llm, num_banned = llm_of(drafter), 0
    for seed in range(12):
        params = SamplingParams(
            seed=seed, max_tokens=25, ignore_eos=True, skip_special_tokens=False, bad_words=["ab", "cde", "ee", "dbc"]
        )
        output = llm.generate([PROMPT], params)[0].outputs[0]
        assert output.token_ids == by_hand(params, 25, set())
        assert not any(word in output.text for word in params.bad_words)
        free = SamplingParams(seed=seed, max_tokens=25, ignore_eos=True)
        num_banned += by_hand(free, 25, set()) != output.token_ids
    assert num_banned >= 6, "the words would have come without the ban"


def test_t28_only_the_request_with_bad_words_is_masked():
    target = TableTarget(table(0), num_slots=2)
    config = {"num_speculative_tokens": 4, "draft_length": "fixed"}
    llm = LLM.from_target(
        target, Letters(TEXTS), speculative_config=config, drafter=TableDrafter(table(0), ragged=False)
    )
    free = SamplingParams(seed=5, max_tokens=25)
    strict = SamplingParams(seed=5, max_tokens=25, bad_words=["ab", "ee"], logit_bias={1: -math.inf})
    first, second = llm.generate([PROMPT] * 2, [free, strict])
    assert first.outputs[0].token_ids == by_hand(free, 25, set())
    assert 1 not in second.outputs[0].token_ids and "ee" not in second.outputs[0].text
