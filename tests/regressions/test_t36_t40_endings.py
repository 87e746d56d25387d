"""T27 and T36 to T40 at every offset within a block, for chains and trees, against a definition without an engine."""

import pytest

from tests.requests.endings import ALL_DRAFTERS, CHECKS


@pytest.mark.parametrize("drafter", ALL_DRAFTERS)
@pytest.mark.parametrize("check", CHECKS)
def test_endings_at_every_offset(check, drafter):
    CHECKS[check](drafter)
