"""T50 to T55: n samples of one seed, seeds of 64 bits, and requests that leave each other's noise alone."""

import pytest

from draftproof import ParameterError, SamplingParams
from draftproof.core import Key, Purpose
from draftproof.noise import KeyedNoise
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.tables import engine, ids, params, table

PROMPT = [1, 2, 3]


def by_hand(target, seed, sample_index, length):
    """Plain decoding written out: the keyed race at each absolute position, with the sample's index in its counter."""
    noise, context = KeyedNoise(seed, sample_index), list(PROMPT)
    for _ in range(length):
        context.append(target.law(tuple(context)).draw(noise, Key(Purpose.TARGET, len(context))))
    return tuple(context[len(PROMPT) :])


def check_t52_samples(**options):
    """n samples are n streams: those of the counters' sample index, whatever drafts."""
    llm = engine(table(), **options)
    output = llm.generate([PROMPT], params(seed=7, n=4, max_tokens=16))[0]
    found = [completion.token_ids for completion in output.outputs]
    assert [completion.index for completion in output.outputs] == [0, 1, 2, 3]
    assert len(set(found)) == 4
    assert found == [by_hand(table(), 7, index, 16) for index in range(4)]
    assert output.seed == 7


DRAFTERS = {
    "plain": {"method": None},
    "chain": {"drafter": TableDrafter(table(1))},
    "chain, four at once": {"drafter": TableDrafter(table(1)), "num_slots": 4},
    "tree": {"drafter": TreeDrafter(table(0)), "tokens": 6, "num_slots": 2},
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_t52_samples_are_distinct_streams(drafter):
    check_t52_samples(**DRAFTERS[drafter])


def test_the_first_sample_is_the_request_without_n():
    alone = ids(engine(table(), method="suffix").generate([PROMPT], params(seed=7)))[0]
    assert engine(table(), method="ngram").generate([PROMPT], params(seed=7, n=3))[0].outputs[0].token_ids == alone


@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
def test_samples_differ_under_exact_law_verifiers_too(verifier):
    llm = engine(table(), verifier=verifier, drafter=TableDrafter(table(1)), num_slots=2)
    completions = llm.generate([PROMPT], params(seed=7, n=5))[0].outputs
    assert len({completion.token_ids for completion in completions}) == 5


def test_n_is_one_at_temperature_zero_and_best_of_is_refused():
    with pytest.raises(ParameterError, match="n=2: must be 1 at temperature 0"):
        SamplingParams(n=2, temperature=0)
    with pytest.raises(ParameterError, match="best_of=3: .*set n and choose among the samples"):
        SamplingParams(n=2, best_of=3)


def test_metrics_are_the_sum_over_samples():
    output = engine(table(), drafter=TableDrafter(table(1)), num_slots=2).generate([PROMPT], params(seed=1, n=3))[0]
    record = output.metrics.speculative_decoding
    accepted = sum(sum(completion.from_draft) for completion in output.outputs)
    assert record["num_accepted_draft_tokens"] == accepted > 0
    emitted = sum(len(completion.token_ids) for completion in output.outputs)
    assert record["num_spec_tokens"] + record["num_plain_steps"] == emitted == 120


def test_samples_are_told_apart_in_a_stream():
    llm = engine(table(), drafter=TableDrafter(table(1)), num_slots=2)
    whole = [completion.token_ids for completion in llm.generate([PROMPT], params(seed=3, n=3))[0].outputs]
    tokens, finished, output = {0: [], 1: [], 2: []}, [], None
    for chunk in llm.stream_generate(PROMPT, params(seed=3, n=3)):
        if chunk.token_id >= 0:
            tokens[chunk.index].append(chunk.token_id)
        if chunk.finish_reason:
            finished.append(chunk.index)
        assert output is None, "the output comes with the very last chunk"
        output = chunk.output
    assert [tuple(tokens[index]) for index in range(3)] == whole and sorted(finished) == [0, 1, 2]
    assert output is not None and [completion.token_ids for completion in output.outputs] == whole


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_seeds_of_64_bits_are_kept_whole(seed):
    output = engine(table(), method="suffix").generate([PROMPT], params(seed=seed))[0]
    assert output.seed == seed and output.outputs[0].token_ids == by_hand(table(), seed, 0, 40)


def test_every_bit_of_a_seed_counts():
    runs = {by_hand(table(), 1 << bit, 0, 12) for bit in range(64)}
    assert len(runs) > 60


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "1"])
def test_other_seeds_are_refused(seed):
    with pytest.raises(ParameterError, match="seed="):
        SamplingParams(seed=seed)


def test_t55_what_a_neighbour_drafts_changes_nobody_elses_draws():
    """Equal seeds in one batch, reordered batches, other batch sizes, other draft lengths: same texts."""
    mine = params(seed=42)
    alone = ids(engine(table(), method=None).generate([PROMPT], mine))[0]
    mates = [params(seed=42), params(seed=42, n=2), params(seed=1), params(temperature=0)]
    for tokens in (1, 9):
        for num_slots in (1, 3):
            llm = engine(table(), drafter=TableDrafter(table(1)), tokens=tokens, num_slots=num_slots)
            for place in (0, 4):
                requests = [*mates[:place], mine, *mates[place:]]
                prompts = [[4, 4]] * len(requests)
                prompts[place] = PROMPT
                assert ids(llm.generate(prompts, requests))[place] == alone


def test_equal_requests_in_one_batch_give_equal_texts():
    outputs = ids(engine(table(), drafter=TableDrafter(table(1)), num_slots=3).generate([PROMPT] * 5, params(seed=9)))
    assert len(set(outputs)) == 1


def test_fresh_seeds_are_returned_and_replay_every_sample():
    llm = engine(table(), method="ngram", num_slots=2)
    first, second = llm.generate([PROMPT] * 2, params(n=2))
    assert first.seed != second.seed
    again = engine(table(), method=None).generate([PROMPT], params(n=2, seed=first.seed))[0]
    assert [c.token_ids for c in again.outputs] == [c.token_ids for c in first.outputs]
