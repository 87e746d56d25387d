"""Steps that run ahead, as captured graphs, with chain drafters: what steps say that are waited for."""

import pytest
import torch

from tests.gpu.ahead_texts import check_invariant_text

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_invariant_targets_say_the_same_with_everything_on_and_off(tmp_path, method, dtype):
    check_invariant_text(tmp_path, method, dtype)
