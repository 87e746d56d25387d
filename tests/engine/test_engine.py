"""The engine's own interface: queues, limits, cancellation, streams that share a batch, scheduling rules."""

import threading

import pytest

from benchmarks.endurance_load import run_alone, said
from draftproof import LLM, SamplingParams
from draftproof.engine.prefix import BLOCK_SIZE
from draftproof.errors import ParameterError, QueueFullError
from draftproof.targets.toy import TableTarget
from tests.engine.drafting import TableDrafter
from tests.engine.requests import Bench
from tests.engine.tables import deep_table, ids, params


def bench(*, num_slots=2, limits=None, **kw):
    return Bench(target=TableTarget(deep_table(), num_slots=num_slots, **(limits or {})), **kw)


def fields(**kw):
    return SamplingParams(**{"max_tokens": 8, "detokenize": False, "seed": 1, **kw})


def test_a_full_queue_says_what_to_do_and_loses_nothing():
    found = bench(num_slots=1, max_num_waiting=2)
    requests = [found.add([place], fields(seed=place)) for place in (0, 1)]
    with pytest.raises(QueueFullError, match="2 requests are waiting and the queue holds 2: step the engine") as caught:
        found.add([2], fields())
    assert (caught.value.num_waiting, caught.value.max_num_waiting) == (2, 2)
    found.engine.step()
    requests.append(found.add([2], fields(seed=2)))
    found.run()
    for request in requests:
        assert said(request) == run_alone(TableTarget(deep_table()), list(request.prompt_ids), request.params)


def test_an_id_is_used_once_and_a_request_runs_once():
    found = bench()
    request = found.add([1], fields())
    with pytest.raises(ParameterError, match="no other unfinished request's"):
        found.engine.add_request(request)
    found.run()
    with pytest.raises(ParameterError, match="admit it anew"):
        found.engine.add_request(request)
    assert not found.engine.abort(request.request_id)


def test_a_draft_that_no_step_has_room_for_is_refused_at_once():
    found = bench(drafter=TableDrafter(deep_table()), tokens=6, max_num_batched_tokens=8)
    with pytest.raises(ParameterError, match="max_num_batched_tokens=8.*: 9 or more"):
        found.add([1], fields())
    exact = bench(drafter=TableDrafter(deep_table(), ragged=False), tokens=6, max_num_batched_tokens=9)
    request = exact.add([1], fields(max_tokens=20))
    exact.run()
    assert max(request.record.per_step_drafted) == 6


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_waiting"])
@pytest.mark.parametrize("value", [0, -1, True, 2.5])
def test_limits_are_checked(name, value):
    with pytest.raises(ParameterError, match=name):
        bench(**{name: value})


def test_lower_priorities_come_first_and_equals_by_arrival():
    found = bench(num_slots=1)
    order = [found.add([place], fields(max_tokens=2), priority=priority) for place, priority in enumerate((1, 0, 1, 0))]
    ended = []
    while found.engine.has_unfinished:
        ended += [turn.request for turn in found.engine.step() if turn.request.is_finished]
    assert ended == [order[1], order[3], order[0], order[2]]


def test_contexts_and_passes_share_a_step_and_its_budget():
    """A long prompt comes in by chunks while another request goes on decoding, a pass in every step."""
    found = bench(max_num_batched_tokens=8)
    first = found.add([0], fields(max_tokens=30))
    found.engine.step()
    second = found.add([place % 6 for place in range(30)], fields(max_tokens=4))
    mixed = 0
    while not second.emitted:
        turns = found.engine.step()
        assert first in [turn.request for turn in turns] and sum(turn.num_tokens for turn in turns) <= 8
        mixed += len(turns) == 2
    assert mixed >= 4
    found.run()


def test_a_short_cache_pushes_out_the_youngest_and_all_end():
    found = bench(num_slots=3, limits={"max_model_len": 40, "max_num_cached_tokens": 60})
    requests = [found.add([place] * 15, fields(seed=place, max_tokens=20)) for place in range(3)]
    found.run()
    assert [request.num_preemptions for request in requests][0] == 0
    assert found.engine.scheduler.num_preemptions > 0
    for request in requests:
        assert said(request) == run_alone(TableTarget(deep_table()), list(request.prompt_ids), request.params)


def test_samples_of_one_prompt_are_cached_once():
    prompt = [place * place % 6 for place in range(60)]
    found = bench(num_slots=4, enable_prefix_caching=True, max_num_batched_tokens=16)
    requests = [found.add(prompt, fields(seed=seed)) for seed in range(4)]
    steps = found.run()
    appended = sum(turn.num_context for turns in steps for turn in turns if not turn.is_pass)
    # Less than a block isn't waited for.
    assert appended <= len(prompt) + 3 * BLOCK_SIZE
    assert found.engine.slots.num_reused_tokens > 3 * (len(prompt) - 1 - BLOCK_SIZE)
    for request in requests:
        assert said(request) == run_alone(TableTarget(deep_table()), prompt, request.params)


def test_the_next_turn_of_a_chat_goes_on_in_its_slot():
    found = bench(num_slots=1, enable_prefix_caching=True)
    prompt = [1, 2, 3, 4] * 6
    first = found.add(prompt, fields())
    found.run()
    longer = [*first.context_ids, 1, 5]
    second = found.add(longer, fields(seed=3))
    found.run()
    assert found.engine.slots.num_reused_tokens == len(first.context_ids) - 1
    assert said(second) == run_alone(TableTarget(deep_table()), longer, second.params)


def test_parked_entries_go_when_the_room_is_needed_the_oldest_first():
    found = bench(num_slots=3, limits={"max_model_len": 64, "max_num_cached_tokens": 100}, enable_prefix_caching=True)
    for place in range(2):
        found.add([place] * 40, fields(max_tokens=2))
        found.run()
    assert found.engine.slots.num_parked_columns == 82
    third = found.add([3] * 40, fields(max_tokens=2))
    found.run()
    left = [found.engine.slots.index.longest([place] * 40, 40) for place in (0, 1, 3)]
    assert left[0] is None and left[1] is not None and left[2] is not None
    assert said(third) == run_alone(TableTarget(deep_table()), [3] * 40, third.params)


def test_streams_share_the_batch_and_each_gets_its_own_tokens():
    llm = LLM.from_target(TableTarget(deep_table(), num_slots=2), None)
    expected = [ids(llm.generate([[place]], params(seed=place)))[0] for place in range(3)]
    streams = [llm.stream_generate([place], params(seed=place)) for place in range(3)]
    found = [[] for _ in streams]
    for turn in range(200):
        # The third is closed after a while; the first two go on, however unevenly they are read.
        for place in (0, 1, 2) if turn < 5 else (turn % 2, turn % 2, 1 - turn % 2):
            chunk = next(streams[place], None)
            if chunk is not None and chunk.token_id >= 0:
                found[place].append(chunk.token_id)
        if turn == 4:
            streams[2].close()
    assert [tuple(tokens) for tokens in found[:2]] == expected[:2]
    assert tuple(found[2]) == expected[2][: len(found[2])]
    assert not llm.engine.has_unfinished and llm.engine.num_running == llm.engine.num_waiting == 0


def test_threads_may_drive_one_llm():
    llm = LLM.from_target(TableTarget(deep_table(), num_slots=2), None)
    expected = [ids(llm.generate([[place]], params(seed=place)))[0] for place in range(6)]
    found = {}

    def work(place):
        found[place] = ids(llm.generate([[place]], params(seed=place)))[0]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[place] for place in range(6)] == expected


def test_more_prompts_than_the_queue_holds():
    llm = LLM.from_target(TableTarget(deep_table(), num_slots=2), None, max_num_waiting=3)
    outputs = llm.generate([[place % 6] for place in range(20)], [params(seed=place) for place in range(20)])
    alone = LLM.from_target(TableTarget(deep_table()), None)
    assert ids(outputs) == [ids(alone.generate([[p % 6]], params(seed=p)))[0] for p in range(20)]


def test_two_engines_over_one_target_take_turns():
    """What another engine left in the slots is neither used nor in the way."""
    target = TableTarget(deep_table(), num_slots=2)
    first, second = (Bench(target=target, enable_prefix_caching=True) for _ in range(2))
    prompt = [1, 2, 3, 4] * 6
    for turn in range(3):
        for found in (first, second):
            request = found.add([*prompt, turn], fields(seed=turn))
            found.run()
            assert said(request) == run_alone(TableTarget(deep_table()), [*prompt, turn], request.params)


def test_a_processor_that_fails_takes_its_request_alone(monkeypatch):
    from draftproof.engine import step

    right = step.laws_of

    def laws_of(chain, request, *rest):
        if request.prompt_ids == (5,):
            raise ZeroDivisionError("a user's processor")
        return right(chain, request, *rest)

    monkeypatch.setattr(step, "laws_of", laws_of)
    found = bench()
    bad, good = found.add([5], fields()), found.add([1], fields())
    found.run()
    assert "ZeroDivisionError: a user's processor" in str(bad.error) and bad.error.request_id == bad.request_id
    monkeypatch.setattr(step, "laws_of", right)
    assert said(good) == run_alone(TableTarget(deep_table()), [1], good.params)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no memory")])
def test_a_copy_that_fails_loses_no_request(monkeypatch, error):
    """Admission is interrupted in the middle: the step raises, and everybody resumes in the next one."""
    found = bench(num_slots=3, enable_prefix_caching=True)
    prompt = [1, 2, 3, 4] * 6
    first = found.add(prompt, fields())
    found.engine.step()
    second, third = found.add(prompt, fields(seed=2)), found.add([5], fields(seed=3))

    def copy(self, source, slot, length):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(TableTarget, "copy", copy)
        with pytest.raises(type(error)):
            found.engine.step()
    assert found.engine.num_running == 0 and found.engine.num_waiting == 3
    found.run()
    for request in (first, second, third):
        assert said(request) == run_alone(TableTarget(deep_table()), list(request.prompt_ids), request.params)
    assert found.engine.slots.num_free == 3
