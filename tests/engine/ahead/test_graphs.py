"""How many steps are made, each of which is a graph to capture on a device: other lengths and longer contexts leave
those that are there of use."""

import pytest

from draftproof.engine.ahead.loop import Member
from tests.engine.ahead.running import PARAMS, PROMPTS, TOKENS, bench_of, sizes_for, target_of


def steps_of(bench, lengths, *, bound=20, num_requests=1):
    """A step for each draft length, for requests whose slots have `bound` entries."""
    ahead = bench.engine.ahead
    requests = [bench.make(PROMPTS[0], PARAMS[0]) for _ in range(num_requests)]
    ahead._members = [Member(request, bound, bound) for request in requests]
    return [ahead._step_for(requests, length) for length in lengths]


@pytest.mark.parametrize("method", ["dflash", "dspark", "eagle3", "mtp"])
def test_another_length_moves_no_buffer(tmp_path, method):
    bench = bench_of(target_of(**sizes_for(method)), method, tmp_path, ahead=True)
    lengths = [0, 1, TOKENS, 2]
    steps = steps_of(bench, lengths)
    assert all(step.is_current for step in steps)
    assert all(again is step for again, step in zip(steps_of(bench, lengths), steps, strict=True))


@pytest.mark.parametrize(("num_requests", "num_keys"), [(1, [1024, 1024, 2048]), (6, [256, 1024, 2048])])
def test_few_requests_have_room_to_grow(tmp_path, num_requests, num_keys):
    """A batch of six has few columns to spare: its short contexts have a step of their own."""
    bench = bench_of(target_of(8), None, tmp_path, ahead=True)
    found = [steps_of(bench, [0], bound=bound, num_requests=num_requests)[0] for bound in (20, 900, 1100)]
    assert [step.num_keys for step in found] == num_keys
    assert len({id(step) for step in found}) == len(set(num_keys))
