"""Graphs of steps that run ahead: filled up with copies, and against the calls that they were captured from."""

import gc

import pytest
import torch

from draftproof import SamplingParams
from draftproof.engine.ahead.step import AheadStep
from draftproof.targets.static.capturing import captured
from tests.engine.ahead.running import TOKENS, bench_of, drafted, said, sizes_for, target_of, texts
from tests.gpu.ahead_texts import WIDEST_FIRST

pytestmark = pytest.mark.gpu
MORE = [*WIDEST_FIRST, SamplingParams(temperature=3.0, seed=12, max_tokens=36, detokenize=False)]
"""One ends at once: five go on, as a batch of six."""


def test_batches_that_are_filled_up_say_the_same(tmp_path):
    def target():
        return target_of(8, device="cuda", dtype=torch.bfloat16, invariant=True, width=8 * (TOKENS + 1))

    expected = said(bench_of(target(), None, tmp_path, ahead=False), MORE)
    bench = bench_of(target(), "dflash", tmp_path, ahead=True)
    assert texts(said(bench, MORE)) == texts(expected)
    assert 6 in {num_places for num_places, *_ in bench.engine.ahead._steps}


@pytest.mark.parametrize("method", ["dflash", "dspark half", "eagle3"])
def test_a_graph_does_what_its_calls_do(tmp_path, method, monkeypatch):
    sizes = sizes_for(method)
    captured = said(bench_of(target_of(device="cuda", **sizes), method, tmp_path, ahead=True), WIDEST_FIRST)
    monkeypatch.setattr(AheadStep, "_capture", lambda step: None)
    called = said(bench_of(target_of(device="cuda", **sizes), method, tmp_path, ahead=True), WIDEST_FIRST)
    assert (texts(captured), drafted(captured)) == (texts(called), drafted(called))


def test_graphs_that_nobody_holds_disturb_no_capture():
    """The collector begins at nearly every allocation, also of a capture, and finds graphs of before."""
    buffer = torch.zeros(8, device="cuda")
    buffer.add_(1.0).zero_()
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(8):
            cycle = [captured(lambda: buffer.add_(1.0))]
            cycle.append(cycle)
            del cycle
            graph = captured(lambda: [buffer.add_(1.0) for _ in range(8)] and None)
        graph.replay()
    finally:
        gc.set_threshold(*before)
    assert buffer.tolist() == [8.0] * 8
