"""Where the kernels run: on the GPU, or on Triton's interpreter (tests/conftest.py asks for it)."""

import pytest
import torch


@pytest.fixture
def device() -> str:
    """Where kernels run here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
