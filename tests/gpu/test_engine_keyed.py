"""The engine on a CUDA device verifies through the kernels: `keyed` and `match`."""

import pytest

from tests.gpu.engine_texts import check_verifier

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("verifier", ["keyed", "match"])
def test_tokens_are_those_of_the_reference_way(verifier):
    check_verifier(verifier)
