"""What happens around a capture, with a capture that does nothing: kept, reused, dropped, or given up."""

from typing import Any

import pytest
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.static import steps as static_steps
from draftproof.targets.static.steps import StaticSteps, Step
from tests.targets.models import tiny_model
from tests.targets.static.forwards import IDS, filled, scored


class Replay:
    """Stands for a graph: runs the forward again."""

    def __init__(self, owner: StaticSteps, step: Step) -> None:
        self._owner, self._step, self.num_replays = owner, step, 0

    def replay(self) -> None:
        self.num_replays += 1
        self._owner._forward(self._step)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, StaticSteps]:
    target = filled(tiny_model("llama"), static=True)
    steps = target._runner.static
    assert steps is not None
    monkeypatch.setattr(steps, "_captures", True)

    def capture(step: Step) -> None:
        step.graph, step.num_bytes = Replay(steps, step), 100
        steps._drop_oldest()

    monkeypatch.setattr(steps, "_capture", capture)
    steps._steps.clear()
    return target, steps


def test_a_bucket_is_captured_when_it_is_needed_again_and_then_replayed(steps):
    target, static = steps
    first = scored(target, [ScoreRequest(0, tuple(IDS[:3]))])
    (step,) = static._steps.values()
    assert step.graph is None and step.logits is None
    for num_replays in (1, 2):
        assert torch.equal(scored(target, [ScoreRequest(0, tuple(IDS[:3]))]), first)
        assert step.graph.num_replays == num_replays
    scored(target, [ScoreRequest(0, tuple(IDS[:4]))])
    assert len(static._steps) == 1


def test_graphs_beyond_the_budget_are_dropped_the_oldest_first(steps, monkeypatch):
    target, static = steps
    monkeypatch.setattr(static_steps, "GRAPH_MEMORY", 250)
    for count in (1, 1, 4, 4, 8, 8):
        scored(target, [ScoreRequest(0, tuple(IDS[:count]))])
    assert [bucket.num_tokens for bucket in static._steps] == [4, 8]
    for count in (4, 1, 1):
        scored(target, [ScoreRequest(0, tuple(IDS[:count]))])
    assert [bucket.num_tokens for bucket in static._steps] == [4, 1]


def test_wide_forwards_are_not_captured(steps):
    target, static = steps
    for _ in range(2):
        scored(target, [ScoreRequest(0, tuple(IDS[:300]))])
    (step,) = static._steps.values()
    assert step.graph is None


def test_a_model_that_cannot_be_captured_runs_all_the_same(monkeypatch):
    target = filled(tiny_model("gemma3"), static=True)
    static = target._runner.static
    expected = scored(target, [ScoreRequest(0, tuple(IDS[:3]))])

    def refuse(step: Step) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(static, "_captures", True)
    monkeypatch.setattr(static, "_capture", refuse)
    with pytest.warns(UserWarning, match="Gemma3ForCausalLM runs without CUDA graphs: operation not permitted"):
        found = scored(target, [ScoreRequest(0, tuple(IDS[:3]))])
    assert torch.equal(found, expected)
    assert torch.equal(scored(target, [ScoreRequest(0, tuple(IDS[:3]))]), expected)


def test_new_taps_drop_the_graphs(steps):
    target, static = steps
    scored(target, [ScoreRequest(0, tuple(IDS[:3]))])
    target.request_taps([1])
    assert not static._steps
    target.release(0)
    target.score([ScoreRequest(0, tuple(IDS[:3]))])
    assert target.taps.lengths[0] == 3
