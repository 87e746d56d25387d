"""The engine on a CUDA device verifies through the kernels: `block`."""

import pytest

from tests.gpu.engine_texts import check_verifier

pytestmark = pytest.mark.gpu


def test_tokens_are_those_of_the_reference_way():
    check_verifier("block")
