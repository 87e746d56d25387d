"""A tiny target, and text that it has made itself."""

from __future__ import annotations

import pytest
import torch

from draftproof.train.generate import GenerationSettings, generate_corpus
from draftproof.train.target import FrozenTarget
from draftproof.train.turns import Turns
from tests.targets.models import VOCAB_SIZE, tiny_model
from tests.threads import one_thread

TURNS = Turns(opening=(1, 2), reply=(0, 3, 4), end_ids=frozenset({0}))
PROMPTS = ([5, 6, 7], [8])
SETTINGS = GenerationSettings(batch_size=8, num_columns=96, max_length=24, seed=1)


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


def make_target() -> FrozenTarget:
    """A law that a small drafter can learn: token v is mostly followed by the next one of a fixed shuffle."""
    model = tiny_model("llama", num_hidden_layers=4, initializer_range=0.1)
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(VOCAB_SIZE, model.config.hidden_size, generator=generator)
    following = torch.randperm(VOCAB_SIZE, generator=generator)
    head = torch.zeros_like(table)
    head[following] = 0.25 * table
    model.model.embed_tokens.weight.data, model.lm_head.weight.data = table, head
    return FrozenTarget(model, None, "tiny")


@pytest.fixture(scope="package")
def target():
    return make_target()


@pytest.fixture(scope="package")
def text(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    with one_thread():
        list(generate_corpus(target, TURNS, PROMPTS, folder, SETTINGS, num_tokens=1500))
    return folder
