"""Recurrent and hybrid targets on a CUDA device: against the model's own forward, and after rewinds."""

import pytest
import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from tests.targets.models import random_ids
from tests.targets.recurrent_models import recurrent_model
from tests.targets.rewinds import wrong_rewinds

pytestmark = pytest.mark.gpu

ARCHITECTURES = ("qwen3_5", "mamba2", "lfm2", "falcon_h1", "falcon_mamba")
"""One of each recurrence, with and without attention beside it."""
TOLERANCE = 1e-4
"""Of the spread of the logits, as on a CPU."""


@pytest.fixture(autouse=True)
def whole_float32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunks_and_rewinds_equal_the_plain_forward(name):
    model, token_ids = recurrent_model(name).cuda(), random_ids(40)
    with torch.no_grad():
        want = model(input_ids=torch.tensor([token_ids]).cuda(), use_cache=False).logits[0]
    target = HFTarget(model, num_slots=2, max_model_len=128)
    target.prefill(0, token_ids[:13])
    target.prefill(1, token_ids[:3])
    requests = [ScoreRequest(1, (*token_ids[3:10],)), ScoreRequest(0, (*token_ids[13:19], 1, 2, 3))]
    other, found = (rows.clone() for rows in target.score(requests))
    target.rewind(0, 19)
    target.rewind(1, 5)
    after, short = target.score([ScoreRequest(0, (*token_ids[19:],)), ScoreRequest(1, (*token_ids[5:9],))])
    limit = TOLERANCE * (want.max() - want.min())
    for rows, expected in ((found[:6], want[13:19]), (after, want[19:]), (other, want[3:10]), (short, want[5:9])):
        assert (rows - expected).abs().max() < limit


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_states_after_rewinds_are_those_of_plain_decoding(name):
    target = HFTarget(recurrent_model(name, scale=0.1).cuda(), num_slots=4, max_model_len=128)
    assert wrong_rewinds(target, 1, num_passes=6, exact=False, tolerance=1e-5) == []
