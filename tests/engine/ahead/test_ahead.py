"""Steps that run ahead say what steps say that are waited for, whoever joins, leaves or fails, and leave no trace."""

import dataclasses

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from draftproof import LLM, SamplingParams
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import LearnedCosts
from draftproof.engine.ahead.lengths import KEPT_FOR, TIMED_FOR, _common, few
from draftproof.engine.ahead.loop import AheadLoop
from draftproof.engine.engine import Engine
from draftproof.errors import ParameterError
from draftproof.sampling import SamplerChain
from draftproof.targets.hf import HFTarget
from tests.drafters.learned.tiny import write_drafter
from tests.engine.ahead.lengths import auto_of, keen, stretches_of
from tests.engine.ahead.running import (
    OTHERS,
    PARAMS,
    PROMPTS,
    TOKENS,
    bench_of,
    drafted,
    endings,
    said,
    sizes_for,
    target_of,
    texts,
)
from tests.targets.models import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drafters")


@pytest.mark.parametrize("method", [None, "dflash", "dspark", "dspark half", "eagle3", "mtp"])
def test_ahead_says_what_steps_say_that_are_waited_for(folder, method):
    sizes = sizes_for(method)
    waited = said(bench_of(target_of(**sizes), method, folder, ahead=False))
    bench = bench_of(target_of(**sizes), method, folder, ahead=True)
    ahead = said(bench)
    assert bench.engine.ahead.num_steps > 15
    assert (texts(ahead), endings(ahead)) == (texts(waited), endings(waited))
    assert len({str(stop) for stop in endings(ahead)}) > 1
    if method is not None:
        # The last passes of a request may have been asked for fewer tokens.
        records = zip(drafted(ahead), drafted(waited), PARAMS, strict=True)
        for (drafted_ahead, accepted_ahead), (_, accepted), params in records:
            assert accepted_ahead[: len(accepted) - 1] == accepted[:-1]
            left = params.max_tokens - 1
            for num_drafted, num_accepted in zip(drafted_ahead, accepted_ahead, strict=True):
                assert num_drafted in (TOKENS, min(TOKENS, left - 1))
                left -= num_accepted + 1
        assert sum(sum(accepted) for _, accepted in drafted(ahead)) > 4


@pytest.mark.parametrize("method", ["dflash", "dspark", "eagle3", "mtp"])
def test_invariant_targets_say_the_same_with_speculation_on_and_off_alone_and_together(folder, method):
    def target():
        return target_of(invariant=True, width=3 * (TOKENS + 1), **sizes_for(method))

    expected = texts(said(bench_of(target(), None, folder, ahead=False)))
    plain = bench_of(target(), None, folder, ahead=True)
    assert texts(said(plain)) == expected
    together = bench_of(target(), method, folder, ahead=True)
    assert texts(said(together)) == expected
    assert together.engine.ahead.num_steps > 8
    for prompt, params, ids in zip(PROMPTS, PARAMS, expected, strict=True):
        request = together.add(prompt, params)
        together.run()
        assert texts([request]) == [ids]


def test_requests_that_the_host_verifies_are_not_run_ahead(folder):
    for params in OTHERS:
        bench = bench_of(target_of(), "dflash", folder, ahead=True)
        ahead = said(bench, [params])
        assert bench.engine.ahead.num_steps == 0
        waited = said(bench_of(target_of(), "dflash", folder, ahead=False), [params])
        assert texts(ahead) == texts(waited)


@pytest.mark.parametrize("change", [{"share_target_noise": False}, {"noise_weight": 0.5}])
def test_what_is_asked_of_drafts_is_honoured_or_left_to_the_host(folder, change):
    write_drafter("dspark", folder / "dspark 2")
    config = {
        "method": "dspark",
        "model": str(folder / "dspark 2"),
        "num_speculative_tokens": TOKENS,
        "draft_length": "fixed",
    }
    llm = LLM.from_target(target_of(), None, speculative_config=config | change)
    llm.engine.ahead = AheadLoop(llm.target, llm.drafter, llm.engine.scheduler)
    llm.generate([PROMPTS[0]], PARAMS[0])
    assert llm.engine.ahead.num_steps == 0


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_chain_waits_for_a_second_token(folder, method):
    """Its first entry reads a token and the feature of the one before."""
    found = []
    for ahead in (False, True):
        bench = bench_of(target_of(**sizes_for(method)), method, folder, ahead=ahead)
        request = bench.add([3], PARAMS[0])
        bench.run()
        found.append(texts([request]))
    assert found[0] == found[1]
    assert bench.engine.ahead.num_steps > 8


@pytest.mark.parametrize("best", [0, 2])
def test_what_auto_tries_out_runs_alone(folder, monkeypatch, best):
    """A length that may pay, and a probe where none does: one step, after which the policy is asked again."""
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=60, ignore_eos=True, detokenize=False)
    keen(monkeypatch, best)
    if best:
        monkeypatch.setattr(AutoLength, "_stretched", lambda policy, best, confidence: best + 1)
    expected = auto_of(folder, ahead=False).generate([PROMPTS[0]], params)[0].outputs[0].token_ids
    stretches = stretches_of(monkeypatch)
    llm = auto_of(folder, ahead=True)
    output = llm.generate([PROMPTS[0]], params)[0]
    record = output.metrics.speculative_decoding
    assert output.outputs[0].token_ids == expected
    assert record["num_spec_steps"] > 0
    if best:
        assert set(stretches) == {1}
        assert record["num_plain_steps"] <= 1
    else:
        assert {1, KEPT_FOR} <= set(stretches)
        assert record["num_plain_steps"] > 2 * record["num_spec_steps"]


def test_plain_steps_are_timed_by_few(folder, monkeypatch):
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=40, ignore_eos=True, detokenize=False)
    stretches = stretches_of(monkeypatch)
    llm = auto_of(folder, ahead=True)
    llm.generate([PROMPTS[0]], params)
    assert stretches[:2] == [TIMED_FOR, TIMED_FOR]


def test_what_steps_cost_that_are_waited_for_is_learned_apart(folder, monkeypatch):
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=60, ignore_eos=True, detokenize=False)
    llm = auto_of(folder, ahead=True)
    measured, observe = [], LearnedCosts.observe_pass
    monkeypatch.setattr(
        LearnedCosts, "observe_pass", lambda costs, *given: (measured.append(costs), observe(costs, *given))
    )
    llm.generate([PROMPTS[0]], params)
    ahead = set(map(id, measured))
    measured.clear()
    llm.generate([PROMPTS[0]], dataclasses.replace(params, logprobs=1))
    assert measured
    assert ahead.isdisjoint(map(id, measured))


@pytest.mark.parametrize(("asked", "agreed"), [([0, 0, 2], 0), ([0, 2, 1], 2), ([0, 3], 4), ([5, 5], 6), ([0, 0], 0)])
def test_a_batch_drafts_where_half_of_it_wants_to(asked, agreed):
    assert _common(asked, [AutoLength(6)] * len(asked), 8) == agreed
    assert _common(asked, [AutoLength(6)] * len(asked), 2) == min(agreed, 2)


def test_requests_of_a_batch_take_the_longest_length_that_one_asks_for(folder, monkeypatch):
    keen(monkeypatch, 1)
    lengths = iter([1, 3, 2] * 1000)
    monkeypatch.setattr(AutoLength, "_best", lambda policy, confidence: next(lengths))
    params = [
        SamplingParams(seed=seed, max_tokens=30, temperature=3.0, ignore_eos=True, detokenize=False)
        for seed in range(3)
    ]
    llm = auto_of(folder, ahead=True)
    outputs = llm.generate(PROMPTS[:3], params)
    waited = auto_of(folder, ahead=False).generate(PROMPTS[:3], params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in waited]
    assert {num_drafts for _, num_drafts, *_ in llm.engine.ahead._steps} == {3}


def test_nothing_is_left_behind_a_stop(folder):
    """The slot ends where the text does, and what others copy of it is what plain decoding has cached."""
    target = target_of(invariant=True, width=TOKENS + 1)
    bench = bench_of(target, "dflash", folder, ahead=True, enable_prefix_caching=True)
    first = bench.add(PROMPTS[4], SamplingParams(temperature=3.0, seed=1, max_tokens=60, detokenize=False))
    slot = None
    while bench.engine.has_unfinished:
        bench.engine.step()
        slot = first.slot if first.slot >= 0 else slot
    assert bench.engine.ahead.num_steps > 5
    length = len(first.context_ids) - 1
    assert target.length(slot) == target.taps.lengths[slot] == length
    group, offset = target.cache.groups[0], target.cache.extents.offsets[slot]
    kept, fresh = group.keys[:, :, offset : offset + length], target_of(invariant=True, width=TOKENS + 1)
    fresh.prefill(0, first.context_ids[:-1])
    expected = fresh.cache.groups[0].keys[:, :, fresh.cache.extents.offsets[0] :][:, :, :length]
    assert torch.equal(kept, expected)
    again = bench.add(first.context_ids[:48], SamplingParams(temperature=0, max_tokens=8, detokenize=False))
    bench.run()
    alone = bench_of(target_of(invariant=True, width=TOKENS + 1), None, folder, ahead=False)
    other = alone.add(first.context_ids[:48], SamplingParams(temperature=0, max_tokens=8, detokenize=False))
    alone.run()
    assert bench.engine.slots.num_reused_tokens > 0
    assert texts([again]) == texts([other])


def test_the_drafter_goes_on_from_what_ran_ahead(folder):
    """No position is read by the target, or by the drafter, a second time when the loop is left and begun again."""
    target = target_of()
    bench = bench_of(target, "dflash", folder, ahead=True)
    drafter = bench.engine.machinery.drafter
    fed, prefilled = [], []
    append, prefill = drafter._append, target.prefill
    drafter._append = lambda slots, starts, taps: (fed.append(taps.shape[1]), append(slots, starts, taps))
    target.prefill = lambda *given: (prefilled.append(given), prefill(*given))
    bench.add(PROMPTS[2], PARAMS[0])
    bench.add(PROMPTS[1], SamplingParams(temperature=3.0, seed=9, max_tokens=10, detokenize=False))
    bench.run()
    # The prompts at first; then what the last step before a change of the batch has committed.
    assert max(fed[2:], default=0) <= 2 * (TOKENS + 1)
    assert not prefilled


moves = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.sampled_from([*PARAMS, *OTHERS])),
        st.tuples(st.just("step"), st.integers(1, 6), st.none()),
        st.tuples(st.just("abort"), st.integers(0, 9), st.none()),
        st.tuples(st.just("interrupt"), st.none(), st.none()),
    ),
    min_size=4,
    max_size=14,
)


class Alone:
    """What a request says alone, with steps that are waited for."""

    def __init__(self):
        self.known = {}

    def __call__(self, folder, prompt, params):
        key = (prompt, id(params))
        if key not in self.known:
            target = target_of(1, invariant=True, width=3 * (TOKENS + 1), **sizes_for("eagle3"))
            bench = bench_of(target, None, folder, ahead=False)
            request = bench.add(PROMPTS[prompt], params)
            bench.run()
            self.known[key] = texts([request])[0]
        return self.known[key]


ALONE = Alone()


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=moves,
    method=st.sampled_from([None, "dflash", "dspark", "eagle3", "mtp"]),
    length=st.sampled_from(["fixed", "auto"]),
)
def test_requests_that_join_and_leave_at_any_step_say_what_they_say_alone(folder, moves, method, length):
    target = target_of(invariant=True, width=3 * (TOKENS + 1), **sizes_for("eagle3"))
    bench = bench_of(target, method, folder, ahead=True, length=length)
    added, aborted = [], set()
    for name, number, params in moves:
        if name == "add":
            added.append((bench.add(PROMPTS[number], params), number, params))
        elif name == "step":
            for _ in range(number):
                bench.engine.step()
        elif name == "abort" and added:
            request = added[number % len(added)][0]
            if bench.engine.abort(request.request_id):
                aborted.add(request.request_id)
        elif name == "interrupt" and bench.engine.has_unfinished:
            interrupted(bench.engine)
    bench.run()
    for request, prompt, params in added:
        expected = ALONE(folder, prompt, params)
        assert request.error is None
        [text] = texts([request])
        assert text == (expected[: len(text)] if request.request_id in aborted else expected)
    assert all(target.length(slot) == 0 for slot in bench.engine.slots._empty)


def interrupted(engine):
    advance = engine._advance

    def fails():
        advance()
        raise KeyboardInterrupt

    engine._advance = fails
    try:
        engine.step()
    except KeyboardInterrupt:
        pass
    engine._advance = advance


def test_batches_come_in_few_sizes():
    sizes = [few(number) for number in range(1, 34)]
    assert sorted(set(sizes)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    assert all(number <= size <= 1.5 * number for number, size in enumerate(sizes, 1))


def test_where_nothing_runs_ahead_it_is_refused():
    for target in (HFTarget(tiny_model("llama")), target_of()):
        with pytest.raises(ParameterError, match="async_scheduling"):
            Engine(target, SamplerChain(), async_scheduling=True)
        assert Engine(target, SamplerChain()).ahead is None
