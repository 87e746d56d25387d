"""Recurrent and hybrid targets in the engine: speculation on = off, bit for bit, while requests join and leave.

Random models say nothing that a lookup could guess, so the drafter here knows the plain text and errs now and then:
drafts are accepted in part, and states are taken back all the time.
"""

import functools

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from draftproof import LLM, SamplingParams
from draftproof.core import Draft
from draftproof.errors import ParameterError
from draftproof.targets.hf import HFTarget
from tests.engine.drafting import TableDrafter
from tests.replay.test_engine_machine_hf import FaultyHF, machine
from tests.targets.models import VOCAB_SIZE, random_ids
from tests.targets.recurrent_models import ARCHITECTURES, EXPERTS_TOO, recurrent_model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAIRS = [(name, dtype) for name in ARCHITECTURES for dtype in DTYPES if (name, dtype) != (EXPERTS_TOO, "fp32")]
NUM_SLOTS, NUM_DRAFTED = 3, 4


@pytest.fixture(autouse=True)
def one_thread(guarded):
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


class Knowing(TableDrafter):
    """Drafts from the plain texts; some drafts end in a wrong token or two."""

    def __init__(self, texts):
        super().__init__(None)
        self.texts = texts

    def _propose(self, request):
        context = list(request.context_ids)
        text = next((text for text in self.texts if text[: len(context)] == context), context)
        length = min(request.num_tokens, 1 + len(context) % NUM_DRAFTED)
        found = text[len(context) :][:length]
        if found and len(context) % 3:
            found[-1] = (found[-1] + 1) % VOCAB_SIZE
        return Draft.of_token_ids(len(context), found)


def requests():
    prompts = [random_ids(3 + 5 * seed, seed=seed) for seed in range(6)]
    shared = random_ids(40, seed=40)
    prompts += [shared + prompts[1], shared + prompts[2], shared + prompts[1]]
    params = [
        SamplingParams(seed=seed, max_tokens=8 + seed, temperature=(0, 0.5, 1)[seed % 3], detokenize=False)
        for seed in range(len(prompts))
    ]
    return prompts, params


def token_ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_on_is_off_bit_for_bit(name, dtype):
    """Nine requests over three slots, prefixes shared; plain they run alone, one after another, on another target."""
    model = recurrent_model(name, DTYPES[dtype])
    prompts, params = requests()
    plain = LLM.from_target(HFTarget(model, max_model_len=128, invariant=True), None, enable_prefix_caching=False)
    alone = [token_ids(plain.generate([prompt], [param]))[0] for prompt, param in zip(prompts, params, strict=True)]
    texts = [[*prompt, *text] for prompt, text in zip(prompts, alone, strict=True)]
    target = HFTarget(model, num_slots=NUM_SLOTS, max_model_len=128, invariant=True)
    llm = LLM.from_target(
        target,
        None,
        speculative_config={
            "method": "ngram", "num_speculative_tokens": NUM_DRAFTED, "draft_length": "fixed",
        },
        drafter=Knowing(texts),
        enable_prefix_caching=True,
        max_num_batched_tokens=24,
    )  # fmt: skip
    outputs = llm.generate(prompts, params)
    assert token_ids(outputs) == alone
    drafted = sum(output.metrics.speculative_decoding["num_draft_tokens"] for output in outputs)
    accepted = sum(output.metrics.speculative_decoding["num_accepted_draft_tokens"] for output in outputs)
    assert 20 < accepted < drafted - 20
    assert llm.engine.slots.num_reused_tokens >= 16


def test_trees_are_refused():
    target = HFTarget(recurrent_model("lfm2"), max_model_len=64)
    with pytest.raises(ParameterError, match="chain"):
        LLM.from_target(target, None, speculative_config={"method": "ngram", "topology": "tree"})


@functools.cache
def target_of(name, num_slots, num_steps):
    return FaultyHF(
        recurrent_model(name),
        num_slots=num_slots,
        max_model_len=320,
        invariant=True,
        max_num_cached_tokens=256 * (2 + num_steps),
    )


@pytest.mark.parametrize("name", ["qwen3_5", "mamba2"])
def test_machine(name):
    """Joins, leaves, cancels, preemptions, shared prefixes and errors at random steps."""
    run_state_machine_as_test(
        machine(name, target_of),
        settings=settings(
            max_examples=4, stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
