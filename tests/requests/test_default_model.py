"""The embedded model, float32 under `invariant`: mixed requests in one batch, speculation on = off bit for bit.

Six of the thirty requests of benchmarks/request_surface.py, which runs all of them.
"""

from dataclasses import fields

from benchmarks.request_surface import DRAFTING, REQUESTS, difference, run, uses
from draftproof import LLM, SamplingParams
from draftproof.targets.load import load_target

CHOSEN = (1, 4, 7, 22, 25, 28)


def test_every_parameter_is_used_at_least_twice():
    assert len(REQUESTS) == 30
    assert [item.name for item in fields(SamplingParams) if uses()[item.name] < 2] == []


def test_on_is_off_in_one_batch():
    target, tokenizer = load_target(dtype="float32", invariant=True, num_slots=4)
    expected = run(LLM.from_target(target, tokenizer), CHOSEN, 6)
    found = run(LLM.from_target(target, tokenizer, speculative_config=DRAFTING["ngram"]), CHOSEN, 6)
    assert [difference(one, other) for one, other in zip(found, expected, strict=True)] == [None] * len(CHOSEN)
    assert sum(sum(completion.from_draft) for output in found for completion in output.outputs) > 3
