"""The default model's tokenizer, without its weights."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def embedded_tokenizer() -> Any:
    from transformers import AutoTokenizer

    from draftproof.targets.embedded import embedded_folder

    return AutoTokenizer.from_pretrained(embedded_folder())
