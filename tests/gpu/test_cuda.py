"""On a CUDA device: the same integers of noise, and replay under `invariant` on a tiny random model."""

import random

import pytest
import torch

from benchmarks.first.matrix import SETTINGS
from draftproof import LLM, SamplingParams
from draftproof.noise import philox4x32
from draftproof.targets.hf import HFTarget
from tests.targets.models import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.gpu


def test_philox_gives_the_same_integers_as_on_the_cpu():
    source = torch.Generator().manual_seed(3)
    words = [torch.randint(0, 2**32, (4097,), generator=source) for _ in range(6)]
    on_cpu = philox4x32(tuple(words[:4]), tuple(words[4:]))
    on_gpu = philox4x32(tuple(w.cuda() for w in words[:4]), tuple(w.cuda() for w in words[4:]))
    assert all(torch.equal(a, b.cpu()) for a, b in zip(on_cpu, on_gpu, strict=True))


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def target(request):
    return HFTarget(tiny_model("llama", request.param).cuda(), num_slots=4, invariant=True)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_on_is_off(target, method):
    """All settings in one batch: the kernels that verify it are compiled once."""
    source = random.Random(5)
    settings = [*SETTINGS.values()] * 2
    prompts = [[source.randrange(VOCAB_SIZE) for _ in range(6)] * 2 for _ in settings]
    many = [
        SamplingParams(seed=seed, max_tokens=40, detokenize=False, **setting) for seed, setting in enumerate(settings)
    ]
    config = {"method": method, "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    plain = LLM.from_target(target, None).generate(prompts, many)
    speculative = LLM.from_target(target, None, speculative_config=config).generate(prompts, many)
    assert [o.outputs[0].token_ids for o in speculative] == [o.outputs[0].token_ids for o in plain]
    assert sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in speculative) > 0
