"""Tiny models run on one thread: waking a second one costs more than their arithmetic."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    num_threads = torch.get_num_threads()
    if request.node.get_closest_marker("slow") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
