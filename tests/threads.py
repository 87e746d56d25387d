"""How many threads the tests run on: two, and one each where pytest-xdist runs them side by side."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

NUM_THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices of toy models only lose time to a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
