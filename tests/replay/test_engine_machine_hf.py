"""The same machine over real forwards: a tiny transformers model under `invariant`, tokens and logprobs bit for bit.

Prompts pass the step from 256 to 512 keys; one of the models has sliding windows. A slot's entries are compared by
what is computed from them: every finished request has the very numbers that it has alone.
"""

import functools

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from benchmarks.endurance_load import Faults, run_alone
from draftproof.core import Draft
from draftproof.targets.hf import HFTarget
from draftproof.targets.products import pack_linears
from tests.engine.drafting import TableDrafter
from tests.engine.test_engine_machine import EngineMachine
from tests.targets.models import random_ids, tiny_model

MAX_MODEL_LEN, NUM_SHARED = 320, 270


class FaultyHF(Faults, HFTarget):
    """A model with faults."""


class CopyDrafter(TableDrafter):
    """Drafts what followed the newest token last time, and then guesses: some is accepted, most is not."""

    def _propose(self, request):
        context = list(request.context_ids)
        if context[:2] == [5, 5]:
            raise ValueError("a drafter's bug")
        length = min(request.num_tokens, 1 + len(context) % 4)
        places = [place for place, token_id in enumerate(context[:-1]) if token_id == context[-1]]
        found = context[places[-1] + 1 :][:length] if places else []
        guesses = [(7 * len(context) + place) % 6 for place in range(length - len(found))]
        return Draft.of_token_ids(len(context), found + guesses)


@functools.cache
def target_of(name, num_slots, num_steps):
    model = tiny_model(name)
    pack_linears(model)
    return FaultyHF(
        model,
        num_slots=num_slots,
        max_model_len=MAX_MODEL_LEN,
        invariant=True,
        max_num_cached_tokens=256 * (2 + num_steps),
    )


def machine(name, target_of=target_of):
    class Machine(EngineMachine):
        shared = random_ids(NUM_SHARED, seed=4)
        known: dict = {}

        def make_target(self, num_slots, spare):
            target = target_of(name, num_slots, spare % 3)
            for slot in range(num_slots):
                target.release(slot)
            return target

        def make_drafter(self):
            return CopyDrafter(None)

        def alone(self, prompt_ids, params):
            key = (tuple(prompt_ids), params)
            if key not in self.known:
                self.known[key] = run_alone(target_of(name, 1, 0), prompt_ids, params)
            return self.known[key]

        def held(self, slot):
            """Lengths alone: which tokens they belong to shows in what is said."""
            requests = {request.slot: request for request in self.engine.scheduler.running}
            if slot in requests:
                return requests[slot].context_ids[: self.target.length(slot)]
            return list(self.engine.slots.index._published[slot].token_ids)

    return Machine


@pytest.fixture(autouse=True)
def one_thread(guarded):
    """Matrices this small only lose time to a second thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_machine(name):
    run_state_machine_as_test(
        machine(name),
        settings=settings(
            max_examples=6, stateful_step_count=14, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
