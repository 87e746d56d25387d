"""Replay at the engine's level, on a target whose laws are known and free of rounding differences."""

import pytest

from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.tables import engine, ids, params, table

PROMPTS = [[1, 2, 3], [0], [4, 4, 1, 4, 4], [5, 0, 5]]
SETTINGS = {
    "plain law": {},
    "greedy": {"temperature": 0},
    "filters": {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias and masks": {"logit_bias": {1: 2.0, 3: -1.5}, "allowed_token_ids": [0, 1, 2, 3, 5]},
    "endings": {"stop_token_ids": [2], "min_tokens": 7},
}
DRAFTERS = {
    "ngram": lambda: {"method": "ngram"},
    "suffix": lambda: {"method": "suffix"},
    "same law": lambda: {"drafter": TableDrafter(table(0))},
    "other law": lambda: {"drafter": TableDrafter(table(1))},
    "trees": lambda: {"drafter": TreeDrafter(table(0)), "tokens": 6},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_on_is_off(setting, drafter):
    requests = [params(seed=seed, **SETTINGS[setting]) for seed in range(4)]
    plain = ids(engine(table(), method=None).generate(PROMPTS, requests))
    speculative = engine(table(), **DRAFTERS[drafter]()).generate(PROMPTS, requests)
    assert ids(speculative) == plain
    drafted = sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in speculative)
    accepted = sum(o.metrics.speculative_decoding["num_accepted_draft_tokens"] for o in speculative)
    assert 0 < accepted <= drafted and (accepted < drafted or drafter == "same law")


@pytest.mark.parametrize("length", ["fixed", "auto"])
@pytest.mark.parametrize("tokens", [1, 2, 7, 16])
def test_draft_length_changes_nothing(length, tokens):
    plain = ids(engine(table(), method=None).generate(PROMPTS, params(seed=3)))
    drafter = TableDrafter(table(1), ragged=False)
    assert (
        ids(engine(table(), drafter=drafter, tokens=tokens, length=length).generate(PROMPTS, params(seed=3))) == plain
    )


def test_t50_a_request_does_not_depend_on_its_batch_mates():
    """Seed 42 alone, first, last, in batches of other sizes, beside greedy and filtered mates."""
    alone = ids(engine(table(), method=None).generate([[1, 2, 3]], params(seed=42)))[0]
    mates = [params(seed=None), params(temperature=0), params(top_p=0.8, seed=7), params(top_k=2), params(min_p=0.3)]
    for num_slots in (1, 3, 8):
        for place in (0, 3, 5):
            prompts, requests = [[0]] * 5, list(mates)
            prompts.insert(place, [1, 2, 3])
            requests.insert(place, params(seed=42))
            llm = engine(table(), num_slots=num_slots, drafter=TableDrafter(table(1)))
            assert ids(llm.generate(prompts, requests))[place] == alone


def test_t33_mixed_batch_gives_each_request_its_own_result():
    requests = [params(seed=seed, **setting) for seed, setting in enumerate(SETTINGS.values())]
    prompts = [[seed % 6, 1] for seed in range(len(requests))]
    one_by_one = [ids(engine(table(), method=None).generate([p], r))[0] for p, r in zip(prompts, requests, strict=True)]
    for drafter in DRAFTERS.values():
        llm = engine(table(), num_slots=4, **drafter())
        assert ids(llm.generate(prompts, requests)) == one_by_one
        order = [5, 2, 0, 6, 1, 4, 3]
        shuffled = llm.generate([prompts[i] for i in order], [requests[i] for i in order])
        assert ids(shuffled) == [one_by_one[i] for i in order]


def test_t54_seeds_have_no_effect_at_temperature_zero():
    llm = engine(table(), method="suffix")
    outputs = ids(llm.generate([[1, 2]] * 5, [params(temperature=0, seed=seed) for seed in range(5)]))
    assert len(set(outputs)) == 1


def test_a_seed_is_drawn_and_returned_when_none_is_given():
    llm = engine(table(), method="ngram")
    first, second = llm.generate([[1], [1]], params())
    assert first.seed != second.seed
    assert ids(llm.generate([[1]], params(seed=first.seed)))[0] == first.outputs[0].token_ids


def test_a_chat_turn_continues_the_stream_of_positions():
    """The next turn's prompt holds the first turn: its noise is that of the positions after it."""
    llm = engine(table(), method=None)
    whole = ids(llm.generate([[1, 2]], params(seed=5, max_tokens=30)))[0]
    begun = ids(llm.generate([[1, 2]], params(seed=5, max_tokens=12)))[0]
    resumed = ids(engine(table(), method="suffix").generate([[1, 2, *begun]], params(seed=5, max_tokens=18)))[0]
    assert begun + resumed == whole
