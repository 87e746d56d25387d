"""Penalties, biases and masks inside the kernels on a GPU, against the library's chain: `keyed`."""

import pytest

from tests.gpu.changed import FILTERS, check_changes

pytestmark = pytest.mark.gpu


def test_tokens_are_the_chains() -> None:
    check_changes("keyed")


def test_tokens_without_filters_are_the_chains() -> None:
    """Special tokens are left out when quads are scored, not before."""
    check_changes("keyed", FILTERS[:1] * 4)
