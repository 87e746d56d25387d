"""Penalties, biases and masks inside the kernels on a GPU, against the library's chain: `keyed`."""

import pytest

from tests.gpu.changed import check_changes

pytestmark = pytest.mark.gpu


def test_tokens_are_the_chains() -> None:
    check_changes("keyed")
