"""Deliberately wrong twins of the engine's rules, each named after what it gets wrong, and a scenario that shows it.

A scenario returns True where the engine kept the rule. It has to be True without the mutant and False with it; an
exception that the mutant raises on its way counts as caught as well.
"""

from __future__ import annotations

import dataclasses

from benchmarks.endurance import FaultyTable, law_table
from benchmarks.endurance_load import Load, run_alone, said
from draftproof import SamplingParams
from draftproof.core import Draft
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine import drafting, step
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.slots import Slots
from draftproof.engine.turn import Turn
from draftproof.noise import KeyedNoise
from draftproof.targets.toy import TableTarget
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.requests import Bench
from tests.engine.tables import deep_table as table

PROMPT = [1, 2, 3, 0, 1, 2, 5, 3, 0, 1, 2, 2, 3, 1, 0, 5, 3, 3, 2, 1]


def params(**kw):
    return SamplingParams(**{"max_tokens": 12, "detokenize": False, "seed": 2, "temperature": 0.8, **kw})


def sound(*, num_slots=2, **kw):
    """A bench over a target without faults."""
    return Bench(target=TableTarget(table(), num_slots=num_slots), **kw)


def as_alone(bench, request):
    """Whether a finished request said what it says alone."""
    other = TableTarget(table(), max_model_len=bench.target.max_model_len)
    return said(request) == run_alone(other, list(request.prompt_ids), request.params)


def random_load():
    """Joins, leaves, errors and preemptions over a table: 250 steps."""
    target = FaultyTable(law_table(), num_slots=4, max_model_len=64, max_num_cached_tokens=150)
    load = Load(
        target,
        lambda: FaultyTable(law_table()),
        NgramDrafter(1, 3),
        seed=5,
        max_num_batched_tokens=24,
        enable_prefix_caching=True,
    )
    for _ in range(250):
        load.turn()
    load.drain()
    return load.wrong == []


class Wrong(TableDrafter):
    """Always drafts 4, 4, 4: tokens that the requests below ban, so that all are rejected."""

    def _propose(self, request):
        return Draft.of_token_ids(len(request.context_ids), [4] * min(request.num_tokens, 3))


def copied_after_a_rejection():
    """T61: a second prompt goes on with just what was drafted, and rejected, after the first one."""
    bench = sound(drafter=Wrong(table()), num_slots=2, enable_prefix_caching=True)
    first = bench.add(PROMPT, params(allowed_token_ids=(0, 1, 2, 3, 5)))
    for _ in range(3):
        bench.engine.step()
    begun = [token.token_id for token in first.emitted]
    second = bench.add([*PROMPT, *begun[:-1], 4, 4, 4, 1], params())
    bench.run()
    return as_alone(bench, first) and as_alone(bench, second)


def acceptance_of_a_perfect_drafter():
    """T63: what a drafter proposes can't change the text, so a mix-up shows in the acceptance alone."""
    bench = sound(drafter=TableDrafter(table(), ragged=False), num_slots=3)
    requests = [bench.add(PROMPT[:5] + [place], params(seed=place, temperature=1.0)) for place in (0, 1, 2)]
    bench.run()
    return all(r.record.num_accepted_draft_tokens == r.record.num_draft_tokens for r in requests)


def preempted_in_the_middle():
    """Pushed out after some tokens, and resumed."""
    bench = sound(drafter=TableDrafter(table(1)), num_slots=2)
    request = bench.add(PROMPT, params(max_tokens=20))
    for _ in range(4):
        bench.engine.step()
    bench.engine.scheduler.preempt(request)
    bench.run()
    return request.num_preemptions == 1 and as_alone(bench, request)


def chunked_prompt():
    """A prompt in several chunks beside a request that decodes."""
    bench = sound(num_slots=2, max_num_batched_tokens=8)
    first, second = bench.add([0], params()), bench.add(PROMPT, params())
    bench.run()
    return as_alone(bench, first) and as_alone(bench, second)


def whole_prompt_and_draft():
    """The context, its first draft and its verification in one forward, chains and trees."""
    results = []
    for drafter in (TableDrafter(table()), TreeDrafter(table())):
        bench = sound(drafter=drafter, num_slots=2, tokens=6)
        requests = [bench.add(PROMPT[:length], params(seed=length)) for length in (3, 9, 14)]
        bench.run()
        results += [as_alone(bench, request) for request in requests]
    return all(results)


def lengths_beside_others():
    """Ratio tests need draft lengths that no batch mate has a say in: a crowd within a small budget."""
    lengths = []
    for num_mates in (0, 5):
        bench = sound(drafter=TableDrafter(table(1), ragged=False), verifier="rejection", num_slots=6, **SMALL)
        request = bench.add(PROMPT[:4], params())
        for mate in range(num_mates):
            bench.add([mate], params(seed=mate))
        bench.run()
        lengths.append((request.record.per_step_drafted, said(request)))
    return lengths[0] == lengths[1]


SMALL = {"max_num_batched_tokens": 8, "tokens": 4}


def samples_share_a_prompt():
    """A second request copies the first one's entries, whole blocks and the rest."""
    bench = sound(num_slots=2, enable_prefix_caching=True)
    first = bench.add(PROMPT, params())
    bench.engine.step()
    second = bench.add([*PROMPT[:-1], 4], params(seed=9))
    bench.run()
    return bench.engine.slots.num_reused_tokens >= 19 and as_alone(bench, first) and as_alone(bench, second)


def served_in_turn():
    """Six requests within a budget of two tokens a step: all end in as many steps as it takes."""
    bench = sound(num_slots=6, max_num_batched_tokens=2)
    requests = [bench.add([place], params(max_tokens=6)) for place in range(6)]
    for _ in range(12):
        bench.engine.step()
    emitted = [len(request.emitted) for request in requests]
    return max(emitted) - min(emitted) <= 2


def _rows_swapped(patch):
    right, last = step._scored, [0]

    def scored(target, turns):
        left = len(turns) < last[0]
        last[0] = len(turns)
        found = list(right(target, turns))
        rows = {turn.num_rows for turn in turns}
        return found[::-1] if left and len(rows) == 1 else found

    patch.setattr(step, "_scored", scored)


def _stale_length(patch):
    right_leave, right_take, stale = Slots.leave, Slots.take, {}

    def leave(self, request, *, keep):
        stale[request.request_id] = request.num_cached
        right_leave(self, request, keep=keep)

    def take(self, request):
        right_take(self, request)
        request.num_cached = stale.get(request.request_id, request.num_cached)

    patch.setattr(Slots, "leave", leave)
    patch.setattr(Slots, "take", take)


def _published_early(patch):
    right_init, right_verify, known = Slots.__init__, step._verify, []

    def init(self, *args, **kw):
        right_init(self, *args, **kw)
        known[:] = [self]

    def verify(turn, laws):
        slots, request = known[0], turn.request
        if slots.share and len(turn.draft):
            held = [*request.context_ids, *turn.draft.token_ids]
            slots.index.publish(request.slot, held, len(held))
        return right_verify(turn, laws)

    patch.setattr(Slots, "__init__", init)
    patch.setattr(step, "_verify", verify)
    patch.setattr(Slots, "publish", lambda self, request: None)
    patch.setattr(TableTarget, "reachable", lambda self, slot, length: length)  # and the index is believed


def _seed_by_slot(patch):
    right = Slots.take

    def take(self, request):
        right(self, request)
        request.noise = KeyedNoise(request.slot)

    patch.setattr(Slots, "take", take)


def _another_draft(patch):
    right = drafting._proposed

    def proposed(drafter, asked):
        found = list(right(drafter, asked))
        same = len({draft.start for draft in found if isinstance(draft, Draft)}) == 1
        return found[1:] + found[:1] if same else found

    patch.setattr(drafting, "_proposed", proposed)


def _chunk_off_by_one(patch):
    right = Turn.appended_ids.fget

    def appended(self):
        ids = right(self)
        return ids[1:] + ids[-1:] if self.num_context > 1 and not self.is_pass else ids

    patch.setattr(Turn, "appended_ids", property(appended))


def _first_rows(patch):
    right = TableTarget.score

    def score(self, requests):
        rows = right(self, [dataclasses.replace(request, num_rows=None) for request in requests])
        return [out[: request.num_rows] for out, request in zip(rows, requests, strict=True)]

    patch.setattr(TableTarget, "score", score)


def _fresh_noise(patch):
    right = Scheduler.preempt

    def preempt(self, request):
        right(self, request)
        request.noise = KeyedNoise(request.seed, 1)

    patch.setattr(Scheduler, "preempt", preempt)


def _path_without_chunk(patch):
    right = TableTarget.rewind

    def rewind(self, slot, length, path=()):
        shift = next((index for index, node in enumerate(path) if node != index), 0)
        right(self, slot, length, tuple(node - (shift > 1) for node in path) if path else ())

    patch.setattr(TableTarget, "rewind", rewind)


def _trimmed_drafts(patch):
    right = Scheduler._passes

    def passes(self):
        asked, crowd = self._num_asked, len(self.running) > 1
        self._num_asked = lambda request, num_missing: min(asked(request, num_missing), 1 if crowd else 99)
        try:
            return right(self)
        finally:
            self._num_asked = asked

    patch.setattr(Scheduler, "_passes", passes)


def _one_too_many(patch):
    right = Slots.reuse

    def reuse(self, request):
        before = request.num_cached
        right(self, request)
        if request.num_cached > before:
            request.num_cached += 1

    patch.setattr(Slots, "reuse", reuse)


def _history_lost(patch):
    right = Scheduler.preempt

    def preempt(self, request):
        right(self, request)
        del request.context_ids[len(request.prompt_ids) :]

    patch.setattr(Scheduler, "preempt", preempt)


def _oldest_first(patch):
    right = Scheduler.next_turns

    def next_turns(self):
        turns = right(self)
        for request in self.running:
            request.last_step = 0
        return turns

    patch.setattr(Scheduler, "next_turns", next_turns)


def _not_emptied(patch):
    right = TableTarget.release

    def release(self, slot):
        kept = list(self._entries[slot][:1])
        right(self, slot)
        self._entries[slot][:] = kept

    patch.setattr(TableTarget, "release", release)


def _errors_spread(patch):
    def scored(target, turns):
        try:
            return target.score([step._score_request(turn) for turn in turns])
        except Exception as error:
            return [error] * len(turns)

    patch.setattr(step, "_scored", scored)


MUTANTS = {
    "rows swapped when a request leaves": (_rows_swapped, random_load),
    "stale slot length after preemption": (_stale_length, preempted_in_the_middle),
    "T61: prefix published before verification": (_published_early, copied_after_a_rejection),
    "T50: seed by slot": (_seed_by_slot, random_load),
    "T63: draft of another request": (_another_draft, acceptance_of_a_perfect_drafter),
    "chunk of a context off by one": (_chunk_off_by_one, chunked_prompt),
    "the first rows of a chunk in place of the last": (_first_rows, whole_prompt_and_draft),
    "fresh noise after preemption": (_fresh_noise, preempted_in_the_middle),
    "tree path without the chunk before it": (_path_without_chunk, whole_prompt_and_draft),
    "draft lengths cut for batch mates": (_trimmed_drafts, lengths_beside_others),
    "copied prefix counted one too long": (_one_too_many, samples_share_a_prompt),
    "output forgotten by a preempted request": (_history_lost, preempted_in_the_middle),
    "the oldest are always served first": (_oldest_first, served_in_turn),
    "released slot keeps an entry": (_not_emptied, random_load),
    "one request's failure fails the batch": (_errors_spread, random_load),
}
"""name -> (what makes the engine wrong, the scenario that shows it)."""
