"""State mode over draftproof's own recurrent targets: logits and the states themselves."""

import pytest
import torch

from draftproof.audit.state import audit_state
from draftproof.audit.verdict import Verdict
from draftproof.cli.audit_state import Slots
from draftproof.targets.hf import HFTarget
from tests.targets.recurrent_models import recurrent_model
from tests.targets.test_recurrent import ConvolutionOffByOne, NotRestored


@pytest.fixture(autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def audited(target):
    return audit_state(Slots(target).take, num_trials=8, longest_context=12, block=4)


@pytest.mark.parametrize("name", ["qwen3_5", "lfm2"])
def test_states_are_read_and_judged(name):
    target = HFTarget(recurrent_model(name, scale=0.1), num_slots=2, max_model_len=64)
    found = audited(target)
    assert found.verdict is Verdict.CONSISTENT and not found.findings
    assert "largest difference, layer 0, convolution" in found.numbers
    for mutant in (NotRestored, ConvolutionOffByOne):
        target.cache.recurrent = mutant(target._layers.recurrent, target.num_slots)
        assert audited(target).findings
