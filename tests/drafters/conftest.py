"""One thread for models this small: two spend their time waiting for each other."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(guarded: None) -> Iterator[None]:
    """Sets torch to one thread for a test, and back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
