"""One thread for models this small: two spend their time waiting for each other."""

from collections.abc import Iterator

import pytest

from tests.threads import one_thread


@pytest.fixture(autouse=True)
def on_one_thread(guarded: None) -> Iterator[None]:
    """Sets torch to one thread for a test, and back."""
    with one_thread():
        yield
