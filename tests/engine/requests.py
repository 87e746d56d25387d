"""Engines and requests for tests of the scheduler, over table targets; and what a request says when it is alone."""

from __future__ import annotations

from benchmarks.endurance_load import Faults
from draftproof import SamplingParams
from draftproof.config import SpeculativeConfig
from draftproof.engine.admission import Admission
from draftproof.engine.engine import Engine
from draftproof.sampling import SamplerChain
from draftproof.targets.toy import TableTarget
from tests.engine.drafting import TableDrafter
from tests.engine.tables import deep_table as table

CHAIN = SamplerChain()


class FaultyTarget(Faults, TableTarget):
    """A table with faults."""


class FaultyDrafter(TableDrafter):
    """Fails on prompts that begin with 5, 5; others it drafts for from another law than the target's."""

    def propose(self, requests):
        if any(list(request.context_ids[:2]) == [5, 5] for request in requests):
            raise ValueError("a drafter's bug")
        return super().propose(requests)


class Bench:
    """An engine over a table, with admission; `add` queues a request and remembers what it has to say."""

    def __init__(self, *, target=None, num_slots=3, drafter=None, verifier="keyed", tokens=4, length="fixed", **engine):
        limits = {name: engine.pop(name) for name in ("max_model_len", "max_num_cached_tokens") if name in engine}
        self.target = target or FaultyTarget(table(), num_slots=num_slots, **limits)
        config = None
        if drafter is not None:
            config = SpeculativeConfig(num_speculative_tokens=tokens, draft_length=length, verifier=verifier)
        self.engine = Engine(self.target, CHAIN, drafter, **engine)
        self.admission = Admission(self.target, None, CHAIN, config)
        self.num_made = 0

    def make(self, prompt_ids, params=None, *, priority=0, plain=False, **fields):
        params = params or SamplingParams(**{"detokenize": False, "seed": 1, **fields})
        self.num_made += 1
        [request] = self.admission.admit(f"r{self.num_made}", prompt_ids, params)
        request.priority = priority
        if plain:
            request.length_policy = None
        return request

    def add(self, *args, **kw):
        request = self.make(*args, **kw)
        self.engine.add_request(request)
        return request

    def run(self, most=2000):
        """Steps to the end; returns the turns of every step."""
        steps = []
        while self.engine.has_unfinished:
            steps.append(self.engine.step())
            assert len(steps) <= most, "the engine does not come to an end"
        return steps


def held(target, slot):
    """The token ids whose entries a table target's slot holds."""
    return list(target._entries[slot])
