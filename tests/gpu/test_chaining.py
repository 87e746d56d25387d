"""Kernels that begin while the one before them ends, on a CUDA device: the bits of kernels one after another."""

import random

import pytest
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from draftproof.targets.static import chaining, products
from tests.targets.models import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.gpu

LENGTH = 24


def scores(model, num_rounds=12):
    """Of steps of one token and of more, other tokens each time: what a replay left behind is never what is right."""
    target, source = HFTarget(model, num_slots=32), random.Random(11)
    for slot in range(32):
        target.prefill(slot, [source.randrange(VOCAB_SIZE) for _ in range(LENGTH)])
    found = []
    for num_requests, num_tokens in ((1, 1), (1, 16), (8, 8), (16, 8), (32, 8)):
        for _ in range(num_rounds):
            tokens = [tuple(source.randrange(VOCAB_SIZE) for _ in range(num_tokens)) for _ in range(num_requests)]
            found += [rows.clone() for rows in target.score([ScoreRequest(*each) for each in enumerate(tokens)])]
            for slot in range(num_requests):
                target.rewind(slot, LENGTH)
    return found


def test_steps_have_the_bits_of_kernels_one_after_another(monkeypatch):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("its kernels begin one after another")
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    sizes = {"hidden_size": 2048, "intermediate_size": products.WIDE_COLUMNS * processors // 768 * 768}
    model = tiny_model("qwen3", torch.bfloat16, **sizes, num_hidden_layers=3, initializer_range=0.05).cuda()
    assert chaining.chained(next(model.parameters()))["launch_pdl"]
    early = scores(model)
    monkeypatch.setattr(chaining, "_is_able", lambda device: False)
    for found, expected in zip(early, scores(model), strict=True):
        assert torch.equal(found, expected)
