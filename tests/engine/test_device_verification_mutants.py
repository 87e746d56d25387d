"""Wrong twins of the engine's verification by kernels: each makes requests say something else, and is seen to."""

import dataclasses

import pytest

from draftproof.core import Purpose
from draftproof.engine import device_inputs, device_verification
from draftproof.kernels import arguments
from tests.engine.drafting import TableDrafter
from tests.engine.tables import engine, ids, params
from tests.engine.test_device_verification import on_device, outcome_of_hidden_nan, tables

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf

PROMPTS = [[1, 2, 3], [4, 4, 1, 4, 4]]
LONG_PROMPTS = [[*range(30)], [*range(36, 8, -1)]]


def check(kind, prompts=PROMPTS, **config):
    """Two requests of one kind: the kernels' tokens are the reference way's."""
    given = [params(seed=seed, max_tokens=6, **kind) for seed in range(2)]
    config = config or {"drafter": TableDrafter(tables(0), ragged=False)}
    expected = engine(tables(), num_slots=2, **config).generate(prompts, given)
    llm, _ = on_device(engine(tables(), num_slots=2, **config))
    assert ids(llm.generate(prompts, given)) == ids(expected)


def check_typical_p():
    check({"typical_p": 0.2, "temperature": 1.5})


def check_match():
    check({}, drafter=TableDrafter(tables(0), ragged=False), verifier="match")


def check_repeats():
    check({"no_repeat_ngram_size": 1, "temperature": 1.5})


def check_changes():
    penalties = {"repetition_penalty": 4.0, "presence_penalty": 2.0, "frequency_penalty": 2.0}
    check({**penalties, "temperature": 1.3}, LONG_PROMPTS)


def check_hidden_nan():
    masked = {"allowed_token_ids": list(range(10))}
    assert outcome_of_hidden_nan(masked, device=True) == outcome_of_hidden_nan(masked, device=False)


def passes_over(patch):
    patch.setattr(arguments, "_TAKEN", arguments._TAKEN | {"typical_p"})


def one_field(patch):
    right = device_inputs.rows_of
    patch.setattr(device_verification, "rows_of", lambda passes, purpose, device: right(passes, Purpose.TARGET, device))


def masks_of_the_context(patch):
    right = device_inputs.Pass.masks

    def masks(one, preset):
        first, *rest = right(one, preset)
        return [first] * (1 + len(rest))

    patch.setattr(device_inputs.Pass, "masks", masks)


def without_changes(patch):
    patch.setattr(device_inputs.Pass, "is_changed", False)


def histories_left_out(patch):
    right = device_inputs.changes_of

    def changes_of(passes, device):
        found = right(passes, device)
        return dataclasses.replace(found, seen_ids=found.seen_ids[:, :0], seen_counts=found.seen_counts[:, :0])

    patch.setattr(device_verification, "changes_of", changes_of)


def hidden(patch):
    right = device_verification._verdicts
    patch.setattr(device_verification, "_verdicts", lambda passes, found, is_bad: right(passes, found, None))


MUTANTS = {
    "a parameter passed over": (passes_over, check_typical_p),
    "match draws with the target's field": (one_field, check_match),
    "every row masked as the context's": (masks_of_the_context, check_repeats),
    "no penalties and biases": (without_changes, check_changes),
    "penalties that see drafts alone": (histories_left_out, check_changes),
    "what a mask hides forgiven": (hidden, check_hidden_nan),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    patch, check = MUTANTS[name]
    patch(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


@pytest.mark.parametrize("check", [check_match, check_repeats, check_changes])
def test_the_right_engine_passes(check):
    check()
