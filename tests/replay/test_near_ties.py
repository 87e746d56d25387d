"""The analysis of runs without `invariant`: near ties and filters' edges are told from defects."""

import math

import pytest
import torch

from benchmarks.first import near_ties, replay
from benchmarks.first.matrix import SETTINGS
from benchmarks.first.near_ties import explain, logit_rows, within
from draftproof import LLM, SamplingParams
from draftproof.targets.hf import HFTarget
from tests.targets.models import tiny_model
from tests.threads import one_thread

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture(scope="module")
def llm():
    with one_thread():
        return LLM.from_target(HFTarget(tiny_model("llama", torch.bfloat16), invariant=False), None)


def params(**fields):
    return SamplingParams(**{"seed": 4, "max_tokens": 6, "detokenize": False, "temperature": 0.0, **fields})


def plain(llm, given):
    return llm.generate([PROMPT], given)[0].outputs[0].token_ids


def rows_of(monkeypatch, values, delta):
    """The measured rows: `values` at the first ids, all else far below, and a copy that differs by delta."""
    row = torch.full((64,), -30.0)
    row[: len(values)] = torch.tensor(values)
    other = row.clone()
    other[-1] += delta
    monkeypatch.setattr(near_ties, "logit_rows", lambda *_: [row, other])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_token_far_from_winning_is_a_defect(llm, temperature):
    given = params(temperature=temperature)
    first = plain(llm, given)
    row = logit_rows(llm, PROMPT, first[:2])[0]
    unlikely = int(row.argmin())
    found = explain(llm, PROMPT, first, [*first[:2], unlikely, *first[3:]], given)
    assert found["position"] == len(PROMPT) + 2 and not found["near_tie"] and found["gap"] > found["logit_error"]


def test_the_first_runs_token_wins_on_the_row_that_it_is_explained_from(llm):
    """Every route leads to the row that the engine had, up to rounding."""
    given = params()
    first = plain(llm, given)
    for at in range(len(first)):
        rows = logit_rows(llm, PROMPT, first[:at])
        assert int(rows[0].argmax()) == first[at]
        assert max(float((row - rows[0]).abs().max()) for row in rows) < 0.1


@pytest.mark.parametrize(("delta", "near_tie"), [(0.3, True), (0.2, False)])
def test_a_near_tie_is_one_within_the_measured_error(llm, monkeypatch, delta, near_tie):
    rows_of(monkeypatch, [2.0, 1.5, 0.0], delta)
    found = explain(llm, PROMPT, [0], [1], params())
    assert (
        found["near_tie"] is near_tie and found["gap"] == 0.5 and found["logit_error"] == pytest.approx(delta, rel=1e-4)
    )


@pytest.mark.parametrize(("filters", "values", "pair"), [
    # The second token is just outside of the filter, and would win the race by far.
    ({"top_k": 2}, [3.0, 2.0, 1.99], (0, 2)),
    ({"min_p": math.exp(-1.0)}, [3.0, 1.99], (0, 1)),
    ({"top_p": 0.7}, [1.0, 0.15], (0, 1)),
    # The first run's token is just inside.
    ({"top_p": 0.7}, [1.0, 0.154], (1, 0)),
])  # fmt: skip
def test_a_filters_edge_is_explained_and_a_token_beyond_it_is_not(llm, monkeypatch, filters, values, pair):
    ours, other = pair
    seeds = [seed for seed in range(400) if _wins_by_far(llm, seed, values, ours if ours else other)]
    given = params(temperature=1.0, seed=seeds[0], **filters)
    rows_of(monkeypatch, values, 0.02)
    assert explain(llm, PROMPT, [ours], [other], given)["near_tie"]
    rows_of(monkeypatch, values, 1e-4)
    assert not explain(llm, PROMPT, [ours], [other], given)["near_tie"]


def _wins_by_far(llm, seed, values, token_id):
    row = torch.full((64,), -30.0)
    row[: len(values)] = torch.tensor(values)
    row[token_id] -= 0.5
    return near_ties._winner(llm, row, near_ties.History(PROMPT), params(temperature=1.0, seed=seed)) == token_id


def test_rows_that_are_tried_stay_within_the_error():
    row = torch.linspace(-3, 3, 11)
    tried = list(within(row, 9, 4, 0.25))
    assert len(tried) == 5
    for moved in tried:
        assert float((moved - row).abs().max()) <= 0.25 + 1e-6
        assert moved[4] == row[4] + 0.25 and moved[9] == row[9] - 0.25


def cell(dtype, invariant, setting, num_different=0):
    return {
        "dtype": dtype, "invariant": invariant, "setting": setting, "num_pairs": 3, "num_tokens": 9,
        "num_different": num_different, "num_accepted_by_method": {"ngram": 1, "suffix": 1, "draft_model": 0},
        "differences": [{"near_tie": True}] * num_different if not invariant else [],
    }  # fmt: skip


def shard(records, **where):
    return {"machine": {"threads": 1, **where}, "cells": records}


def test_shards_make_the_matrix_and_nothing_less():
    whole = replay.cells(["bfloat16"])
    assert len(whole) == 2 * len(SETTINGS)
    records = [cell(c.dtype, c.invariant, c.setting, num_different=not c.invariant) for c in whole]
    parts = [shard(records[index::3]) for index in range(3)]
    made = replay.merged(parts)
    assert made["holds"] and made["invariant"]["num_pairs"] == 45 and made["not_invariant"]["num_near_ties"] == 15
    with pytest.raises(ValueError, match="missing or twice"):
        replay.merged(parts[:2])
    with pytest.raises(ValueError, match="missing or twice"):
        replay.merged([*parts, parts[0]])
    with pytest.raises(ValueError, match="different machines"):
        replay.merged([*parts[:2], shard(records[2::3], threads=2)])
    records[0]["num_different"] = 1
    assert not replay.merged(parts)["holds"]
