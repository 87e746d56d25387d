"""A capture is not disturbed by garbage, with a graph that records nothing."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

from draftproof.targets.static.capturing import captured


class Cycle:
    """Found by the collector alone."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def pools(monkeypatch):
    seen = []

    @contextmanager
    def recording(graph, pool):
        seen.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return seen


@pytest.fixture
def eager():
    """The collector begins at nearly every allocation."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


def test_no_garbage_is_destroyed_while_a_graph_is_captured(pools, eager):
    left = []

    def run():
        cycle = Cycle()
        left.append(weakref.ref(cycle))
        del cycle
        made = [[] for _ in range(100)]
        assert len(made) == 100 and left[0]() is not None

    assert captured(run, "a pool") is not None
    assert pools == ["a pool"] and gc.isenabled()
    made = [[] for _ in range(100)]
    assert len(made) == 100 and left[0]() is None


def test_the_collector_is_as_it_was_after_an_error_and_where_it_was_off(pools):
    def fail():
        raise RuntimeError("waits for the device")

    with pytest.raises(RuntimeError, match="waits"):
        captured(fail)
    assert gc.isenabled()
    gc.disable()
    try:
        captured(lambda: None)
        assert not gc.isenabled()
    finally:
        gc.enable()
