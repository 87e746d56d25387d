"""Penalties, biases and masks inside the kernels on a GPU, against the library's chain: `rejection` and `block`."""

import pytest

from tests.gpu.changed import check_changes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_tokens_are_the_chains(rule: str) -> None:
    check_changes(rule)


def test_tokens_of_many_listed_rows_are_the_chains() -> None:
    check_changes("rejection", [{"temperature": 1.3, "top_k": 30}, {"temperature": 0}] * 7)
