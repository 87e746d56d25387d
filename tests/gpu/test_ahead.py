"""Steps that run ahead, as captured graphs: what steps say that are waited for, and what they are called one by one."""

import pytest
import torch

from draftproof import SamplingParams
from draftproof.engine.ahead.step import AheadStep
from tests.engine.ahead.running import (
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

pytestmark = pytest.mark.gpu
MORE = [*PARAMS, SamplingParams(temperature=3.0, seed=12, max_tokens=36, detokenize=False)]
"""One ends at once: five go on, as a batch of six."""


@pytest.mark.parametrize("method", [None, "dflash", "dspark", "dspark half", "eagle3", "mtp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_invariant_targets_say_the_same_with_everything_on_and_off(tmp_path, method, dtype):
    def target():
        return target_of(device="cuda", dtype=dtype, invariant=True, width=3 * (TOKENS + 1), **sizes_for(method))

    expected = said(bench_of(target(), None, tmp_path, ahead=False))
    bench = bench_of(target(), method, tmp_path, ahead=True)
    together = said(bench)
    assert (texts(together), endings(together)) == (texts(expected), endings(expected))
    steps = bench.engine.ahead._steps.values()
    assert bench.engine.ahead.num_steps > 8
    assert all(step._graph is not None for step in steps)
    if method is not None:
        assert sum(sum(accepted) for _, accepted in drafted(together)) > 4
    alone = bench.add(PROMPTS[0], PARAMS[0])
    bench.run()
    assert texts([alone]) == texts(expected[:1])


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
    captured = said(bench_of(target_of(device="cuda", **sizes), method, tmp_path, ahead=True))
    monkeypatch.setattr(AheadStep, "_capture", lambda step: None)
    called = said(bench_of(target_of(device="cuda", **sizes), method, tmp_path, ahead=True))
    assert (texts(captured), drafted(captured)) == (texts(called), drafted(called))
