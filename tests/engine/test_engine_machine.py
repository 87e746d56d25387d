"""The scheduler against its model: whatever joins, leaves, fails or is pushed out, a request says what it says alone.

The machine adds requests of all kinds, steps, aborts, preempts, lets the target fail or be interrupted, and checks
after every step what must hold between steps. The model of a request is its run alone, plain, in an engine of its own.
"""

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.endurance_load import run_alone, said
from draftproof import SamplingParams
from draftproof.errors import QueueFullError
from tests.engine.requests import Bench, FaultyDrafter, FaultyTarget, held
from tests.engine.tables import deep_table as table

MAX_MODEL_LEN, MAX_WAITING = 48, 6
SHARED = [1, 2, 3, 0, 1, 2, 5, 3, 0, 1, 2, 2, 3, 1, 0, 5, 3, 3, 2, 1]
"""Prompts begin with parts of this, so that prefixes are shared."""

prompts = st.tuples(st.integers(0, len(SHARED)), st.lists(st.integers(0, 5), min_size=1, max_size=12))
parameters = st.builds(
    SamplingParams,
    seed=st.integers(0, 5),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    max_tokens=st.integers(1, 16),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    min_p=st.sampled_from([0.0, 0.05]),
    stop_token_ids=st.sampled_from([(), (2,), (0, 3)]),
    allowed_token_ids=st.sampled_from([None, (0, 1, 2, 3, 5), (0, 1, 2, 3, 5)]),
    logprobs=st.sampled_from([None, 0]),
    detokenize=st.just(False),
)


class EngineMachine(RuleBasedStateMachine):
    """Over a table, whose slots show the tokens that they hold. `shared`: what prompts begin with parts of."""

    shared = SHARED

    def make_target(self, num_slots, spare):
        return FaultyTarget(
            table(), num_slots=num_slots, max_model_len=MAX_MODEL_LEN, max_num_cached_tokens=MAX_MODEL_LEN + spare
        )

    def make_drafter(self):
        return FaultyDrafter(table(1))

    def alone(self, prompt_ids, params):
        return run_alone(FaultyTarget(table(), max_model_len=MAX_MODEL_LEN), prompt_ids, params)

    def held(self, slot):
        return held(self.target, slot)

    @initialize(
        num_slots=st.integers(1, 4),
        spare=st.integers(0, 100),
        budget=st.integers(10, 64),
        share=st.booleans(),
        tokens=st.integers(1, 6),
        speculates=st.booleans(),
    )
    def begin(self, num_slots, spare, budget, share, tokens, speculates):
        self.bench = Bench(
            target=self.make_target(num_slots, spare),
            drafter=self.make_drafter() if speculates else None,
            tokens=tokens,
            max_num_batched_tokens=budget,
            max_num_waiting=MAX_WAITING,
            enable_prefix_caching=share,
        )
        self.engine, self.target, self.speculates = self.bench.engine, self.bench.target, speculates
        self.requests, self.aborted, self.broken = [], set(), set()

    @rule(prompt=prompts, params=parameters, priority=st.integers(0, 1), plain=st.booleans())
    def add(self, prompt, params, priority, plain):
        num_shared, rest = prompt
        prompt = self.shared[: num_shared * len(self.shared) // len(SHARED)] + rest
        request = self.bench.make(prompt, params, priority=priority, plain=plain)
        if self.engine.num_waiting >= MAX_WAITING:
            try:
                self.engine.add_request(request)
                raise AssertionError("a full queue took a request")
            except QueueFullError as error:
                assert "step the engine" in str(error)
            return
        self.engine.add_request(request)
        self.requests.append(request)
        if prompt[:2] == [5, 5] and self.speculates and not plain:
            self.broken.add(request.request_id)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.one_step()

    def one_step(self):
        turns = self.engine.step()
        assert sum(turn.num_context + len(turn.draft) for turn in turns) <= self.engine.scheduler.max_num_batched_tokens
        assert len({turn.request.request_id for turn in turns}) == len(turns)
        # Whoever decodes has a pass at least once in as many steps as there are running requests.
        for request in self.engine.scheduler.running:
            if request.num_cached == len(request.context_ids) - 1:
                waited = self.engine.scheduler.num_steps - request.last_step
                assert waited <= self.engine.num_running

    @precondition(lambda self: self.engine.has_unfinished)
    @rule(data=st.data())
    def abort(self, data):
        unfinished = [request for request in self.requests if not request.is_finished]
        request = data.draw(st.sampled_from(unfinished))
        assert self.engine.abort(request.request_id)
        assert not self.engine.abort(request.request_id)
        self.aborted.add(request.request_id)

    @precondition(lambda self: self.engine.num_running > 0)
    @rule(data=st.data())
    def preempt(self, data):
        self.engine.scheduler.preempt(data.draw(st.sampled_from(self.engine.scheduler.running)))

    @rule()
    def target_fails_as_a_whole(self):
        """A batch that fails is run again, one by one: nobody notices."""
        if self.engine.has_unfinished:
            self.target.fails_next = RuntimeError("a kernel failed")
            self.one_step()
            self.target.fails_next = None

    @rule()
    def step_is_interrupted(self):
        if self.engine.has_unfinished:
            self.target.fails_next = KeyboardInterrupt()
            try:
                self.engine.step()
            except KeyboardInterrupt:
                assert self.engine.num_running == 0
            self.target.fails_next = None

    @invariant()
    def slots_are_whole(self):
        scheduler, slots = self.engine.scheduler, self.engine.slots
        taken = [request.slot for request in scheduler.running]
        assert len(set(taken)) == len(taken) and all(slot >= 0 for slot in taken)
        assert sorted([*taken, *slots._empty, *slots._parked]) == list(range(self.target.num_slots))
        assert all(self.target.length(slot) == 0 for slot in slots._empty)
        lengths = [self.target.length(slot) for slot in range(self.target.num_slots)]
        assert sum(map(self.target.num_columns, lengths)) <= self.target.max_num_cached_tokens
        for request in scheduler.running:
            assert self.held(request.slot) == request.context_ids[: request.num_cached]
        assert all(request.slot == -1 and not request.is_finished for request in scheduler.waiting)

    @invariant()
    def the_index_holds_committed_entries_only(self):
        index = self.engine.slots.index
        for slot, entry in index._published.items():
            assert self.held(slot)[: entry.length] == list(entry.token_ids[: entry.length])
            assert entry.length <= self.target.length(slot)
        assert set(index._published) <= {request.slot for request in self.engine.scheduler.running} | set(
            self.engine.slots._parked
        )
        assert len(index) == 0 or self.engine.slots.share

    @invariant()
    def finished_requests_said_what_they_say_alone(self):
        for request in self.requests:
            if not request.is_finished or request.request_id == "checked":
                continue
            tokens, reason, position = self.alone(list(request.prompt_ids), request.params)
            if request.request_id in self.aborted:
                assert said(request)[0] == tokens[: len(request.emitted)] and said(request)[1] == "abort"
            elif request.request_id in self.broken:
                assert said(request)[0] == tokens[: len(request.emitted)]
                assert request.error is None or "a drafter's bug" in str(request.error)
            else:
                assert said(request) == (tokens, reason, position)
            request.record.to_dict()
            request.request_id = "checked"

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        bound = 60 * (len(self.requests) + 1)
        for _ in range(bound):
            if not self.engine.has_unfinished:
                break
            self.one_step()
            self.slots_are_whole()
            self.finished_requests_said_what_they_say_alone()
        assert not self.engine.has_unfinished and self.engine.num_running == self.engine.num_waiting == 0
        assert self.engine.slots.num_free == self.target.num_slots
        while self.engine.slots.evict_one():
            pass
        assert len(self.engine.slots.index) == 0


EngineMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_machine = EngineMachine.TestCase
