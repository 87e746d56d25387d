"""Without a GPU the kernels run on Triton's interpreter, which has to be asked for before they are defined."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> str:
    """Where kernels run here."""
    return "cuda" if torch.cuda.is_available() else "cpu"
