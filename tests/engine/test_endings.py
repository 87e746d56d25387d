"""T36 to T40 through the engine, errors that leave the neighbours alone, and interruption."""

import json
import math

import pytest

from draftproof import GenerationFailed, GenerationInterrupted, LawError, ParameterError, PromptError
from draftproof.core import Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.targets.toy import TableTarget
from draftproof.verify.tables import LawTable
from tests.engine.drafting import TableDrafter
from tests.engine.tables import VOCAB, engine, ids, params, table

CYCLE = LawTable(5, lambda context: [int(t == (context[-1] + 1) % 5) for t in range(5)])
"""0 1 2 3 4 0 1 …: every draft of it is accepted."""


def cycle(**kw):
    return engine(CYCLE, drafter=TableDrafter(CYCLE, ragged=False), tokens=4, **kw)


def test_t36_eos_inside_an_accepted_run():
    output = cycle(eos_token_ids=[3]).generate([[0]], params(temperature=0))[0]
    assert output.outputs[0].token_ids == (1, 2, 3)
    assert output.outputs[0].finish_reason == "stop"


def test_t38_cut_tokens_are_counted_nowhere():
    output = cycle(eos_token_ids=[3]).generate([[0]], params(temperature=0))[0]
    record = output.metrics.speculative_decoding
    assert record["num_accepted_draft_tokens"] == 3 and record["num_draft_tokens"] == 4
    assert record["acceptance_histogram"] == {"3": 1}
    assert len(output.outputs[0].token_ids) == len(output.outputs[0].from_draft) == 3


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_max_tokens_at_every_offset_within_a_block(max_tokens):
    output = cycle().generate([[0]], params(temperature=0, max_tokens=max_tokens))[0]
    assert output.outputs[0].token_ids == tuple((1 + i) % 5 for i in range(max_tokens))
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("prompt_length", range(1, 10))
def test_t40_the_model_length_is_never_overrun(prompt_length):
    """2 positions left and k = 4: at most 1 drafted, 2 emitted. The table raises if a position overflows."""
    llm = cycle(max_model_len=10)
    output = llm.generate([[i % 5 for i in range(prompt_length)]], params(temperature=0, max_tokens=None))[0]
    assert len(output.outputs[0].token_ids) == 10 - prompt_length
    if prompt_length == 8:
        assert output.metrics.speculative_decoding["num_draft_tokens"] == 1


@pytest.mark.parametrize("stop_id", range(5))
def test_stop_token_ids_at_every_offset(stop_id):
    output = cycle().generate([[0]], params(temperature=0, stop_token_ids=[stop_id], min_tokens=0))[0]
    assert output.outputs[0].token_ids[-1] == stop_id
    assert output.outputs[0].stop_reason == stop_id


class Failing(TableTarget):
    """A row of NaN after the token 4."""

    def score(self, requests):
        scores = super().score(requests)
        for request, rows in zip(requests, scores, strict=True):
            rows[[i for i, token_id in enumerate(request.token_ids) if token_id == 4]] = math.nan
        return scores


def failing(num_slots, drafter):
    from draftproof import LLM

    target = Failing(table(), num_slots=num_slots)
    if drafter is None:
        return LLM.from_target(target, None)
    config = {"method": "ngram", "draft_length": "fixed", "num_speculative_tokens": 4}
    return LLM.from_target(target, None, speculative_config=config, drafter=drafter)


@pytest.mark.parametrize("drafter", [None, TableDrafter(table()), TableDrafter(table(1), ragged=False)])
def test_a_nan_row_fails_its_request_alone(drafter):
    """The failing request's text is the same with speculation on and off, and so are its neighbours'."""
    allowed = [0, 1, 2, 3, 5]
    requests = [params(seed=1, allowed_token_ids=allowed), params(seed=2), params(seed=3, allowed_token_ids=allowed)]
    with pytest.raises(GenerationFailed) as caught:
        failing(2, drafter).generate([[1]] * 3, requests)
    first, second, third = caught.value.outputs
    assert first.error is None and third.error is None
    assert len(first.outputs[0].token_ids) == len(third.outputs[0].token_ids) == 40
    assert isinstance(second.error, LawError)
    emitted = second.outputs[0].token_ids
    assert emitted[-1] == 4 and 4 not in emitted[:-1]
    assert second.error.request_id == second.request_id and second.error.position == 1 + len(emitted)
    assert second.outputs[0].finish_reason == "error"
    plain = pytest.raises(GenerationFailed, failing(1, None).generate, [[1]], requests[1]).value
    assert plain.outputs[0].outputs[0].token_ids == emitted


def test_prompts_that_cannot_be_run_fail_alone():
    llm = engine(table(), max_model_len=20)
    prompts = [[1], [], [1] * 20, [VOCAB], [2]]
    with pytest.raises(GenerationFailed) as caught:
        llm.generate(prompts, params(max_tokens=5, seed=1))
    errors = [output.error for output in caught.value.outputs]
    assert [isinstance(error, PromptError) for error in errors] == [False, True, True, True, False]
    assert "no tokens" in str(errors[1]) and "20" in str(errors[2]) and f"0 to {VOCAB - 1}" in str(errors[3])
    assert all(len(output.outputs[0].token_ids) == 5 for output in caught.value.outputs[::4])


class Interrupting(TableTarget):
    calls = 0

    def score(self, requests):
        self.calls += 1
        if self.calls == 6:
            raise KeyboardInterrupt
        return super().score(requests)


def test_ctrl_c_keeps_what_was_emitted_and_frees_the_slots():
    from draftproof import LLM

    target = Interrupting(CYCLE, num_slots=2)
    llm = LLM.from_target(target, None)
    with pytest.raises(GenerationInterrupted) as caught:
        llm.generate([[0], [1], [2]], params(temperature=0))
    outputs = caught.value.outputs
    assert [output.outputs[0].token_ids for output in outputs] == [(1, 2, 3, 4, 0), (2, 3, 4, 0, 1), ()]
    assert {output.outputs[0].finish_reason for output in outputs} == {"abort"}
    assert target.length(0) == target.length(1) == 0
    assert len(llm.generate([[0]], params(temperature=0))[0].outputs[0].token_ids) == 40


def test_a_closed_stream_frees_its_slot():
    llm = cycle()
    stream = llm.stream_generate([0], params(temperature=0))
    assert next(stream).token_id == 1
    stream.close()
    assert llm.target.length(0) == 0
    assert [chunk.token_id for chunk in llm.stream_generate([0], params(temperature=0, max_tokens=3))] == [1, 2, 3, -1]


def test_a_slot_is_used_again_without_a_trace_of_its_last_request():
    llm = engine(table(), method="suffix", num_slots=1)
    first = ids(llm.generate([[1, 2]], params(seed=9)))
    llm.generate([[3, 3, 3]], params(seed=1))
    assert ids(llm.generate([[1, 2]], params(seed=9))) == first


@pytest.mark.parametrize("verifier", ["keyed", "match", "rejection", "block"])
def test_the_trace_is_enough_to_check_every_decision(verifier, tmp_path):
    target, path = table(), tmp_path / "trace.jsonl"
    llm = engine(target, drafter=TableDrafter(table(1)), verifier=verifier)
    output = llm.generate([[1, 2]], params(seed=4), trace=path)[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["emitted_id"] for line in lines] == list(output.outputs[0].token_ids)
    assert [line["position"] for line in lines] == list(range(2, 42))
    assert [line["outcome"] for line in lines] == list(output.outputs[0].outcomes)
    context = (1, 2)
    for line in lines:
        probs = target.probs(context)
        assert line["emitted_prob"] == pytest.approx(float(probs[line["emitted_id"]]), rel=1e-5)
        noise, key = (
            line["noise"],
            Key(Purpose[line["noise"]["purpose"]], *map(line["noise"].get, ("position", "index"))),
        )
        if key.purpose is Purpose.COIN:
            assert noise["value"] == KeyedNoise(4).uniform(key)
            if verifier == "rejection":
                accepted = noise["value"] * line["draft_prob"] < line["target_prob"]
                assert accepted == (line["outcome"] == "accepted")
        else:
            assert noise["value"] == KeyedNoise(4).word(key, line["emitted_id"])
        context = (*context, line["emitted_id"])


def test_logprobs_of_accepted_recovered_and_bonus_tokens():
    """T56: raw log-probabilities of every emitted token, ranks by strictly larger logits."""
    target = table()
    llm = engine(target, drafter=TableDrafter(table(1)))
    output = llm.generate([[1, 2]], params(seed=4, logprobs=2, temperature=0.5))[0].outputs[0]
    assert set(output.outcomes) == {"accepted", "recovered", "bonus"}
    context = (1, 2)
    for entry, token_id in zip(output.logprobs, output.token_ids, strict=True):
        probs = [float(prob) for prob in target.probs(context)]
        assert entry.own.logprob == pytest.approx(math.log(probs[token_id]), abs=1e-5)
        assert entry.own.rank == 1 + sum(prob > probs[token_id] for prob in probs)
        assert list(entry.top) == sorted(range(VOCAB), key=lambda t: -probs[t])[:2]
        context = (*context, token_id)
    assert output.cumulative_logprob == pytest.approx(sum(entry.own.logprob for entry in output.logprobs))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"method": "ngrams"}, "method='ngrams'"),
        ({"verifier": "typical"}, "verifier='typical'"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens=0"),
        ({"num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "draft_model"}, "model=None"),
        ({"prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_max=3"),
    ],
)
def test_bad_configurations_name_the_field(given, named):
    from draftproof import SpeculativeConfig

    with pytest.raises(ParameterError) as caught:
        SpeculativeConfig.from_mapping(given)
    assert named in str(caught.value)


def test_drafts_longer_than_the_target_scores_are_refused():
    with pytest.raises(ParameterError, match="num_speculative_tokens=12"):
        engine(table(), tokens=12, max_model_len=12)


def test_contradictory_masks_are_an_error_before_anything_runs():
    """T29."""
    with pytest.raises(ParameterError, match="allowed_token_ids"):
        engine(table()).generate([[1]], params(allowed_token_ids=[3, 5], logit_bias={3: -math.inf, 5: -math.inf}))


def test_poisoned_rows_of_rejected_drafts_are_harmless():
    """A NaN row behind a rejected draft is never consulted: plain decoding would not have met it."""
    llm = failing(1, TableDrafter(LawTable(VOCAB, lambda context: [0, 0, 0, 0, 1, 0], exact=False), ragged=False))
    allowed = params(seed=1, allowed_token_ids=[0, 1, 2, 3, 5])
    assert ids(llm.generate([[1]], allowed)) == ids(failing(1, None).generate([[1]], allowed))


class BrokenDrafter(TableDrafter):
    """Fails on contexts that hold a 3."""

    def propose(self, requests):
        if any(3 in request.context_ids for request in requests):
            raise LawError("the drafter's logits are NaN")
        return super().propose(requests)


def test_a_drafter_that_fails_on_one_request_leaves_the_others_alone():
    requests = [params(seed=1, allowed_token_ids=[0, 1, 2, 4]), params(seed=2)]
    plain = ids(engine(table(), method=None).generate([[1], [1]], requests))
    with pytest.raises(GenerationFailed, match="the drafter's logits are NaN") as caught:
        engine(table(), num_slots=2, drafter=BrokenDrafter(table())).generate([[1], [1]], requests)
    first, second = caught.value.outputs
    assert first.outputs[0].token_ids == plain[0]
    assert second.error is not None and second.outputs[0].token_ids == plain[1][: len(second.outputs[0].token_ids)]
