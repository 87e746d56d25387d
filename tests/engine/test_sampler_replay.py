"""Every sampler beyond vLLM's, and custom processors: speculation on gives the text of speculation off."""

import math

import pytest
import torch

from draftproof.errors import ParameterError
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.tables import VOCAB, engine, ids, table
from tests.engine.tables import params as longer_params


def params(**fields):
    return longer_params(**{"max_tokens": 24, **fields})


PROMPTS = [[1, 2, 3], [0], [4, 4, 1, 4, 4], [5, 0, 5]]


def no_triples(token_ids, logits):
    """Forbids a third equal token in a row, and shifts one logit by the length."""
    if len(token_ids) >= 2 and token_ids[-1] == token_ids[-2]:
        logits[token_ids[-1]] = -math.inf
    logits[len(token_ids) % len(logits)] += 1.0
    return logits


class Fatigue:
    """Explicit state: each output token lowers its own logit for good. Extended in place: fork makes the copy."""

    def __init__(self, counts=(0,) * VOCAB):
        self.counts = list(counts)

    def __call__(self, token_ids, logits):
        return logits - 0.5 * torch.tensor(self.counts, dtype=logits.dtype)

    def fork(self):
        return Fatigue(self.counts)

    def extended(self, token_id):
        self.counts[token_id] += 1
        return self


DRY = {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": []}
SETTINGS = {
    "typical_p": {"typical_p": 0.7},
    "top_n_sigma": {"top_n_sigma": 1.0, "temperature": 1.3},
    "cutoffs": {"epsilon_cutoff": 0.05, "eta_cutoff": 0.2},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "dry": DRY,
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 1.0, "mirostat_eta": 0.3},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.3},
    "dynamic temperature": {"dynatemp_range": 0.8, "dynatemp_exponent": 1.5},
    "n-grams": {"no_repeat_ngram_size": 4},
    "pure processor": {"logits_processors": [no_triples]},
    "stateful processor": {"logits_processors": [Fatigue(), no_triples]},
    "greedy with state": {"temperature": 0.0, "logits_processors": [Fatigue()], **DRY},
    "all that go together": {
        **DRY, "typical_p": 0.95, "top_n_sigma": 3.0, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01,
        "xtc_probability": 0.3, "dynatemp_range": 0.3, "no_repeat_ngram_size": 5, "logits_processors": [Fatigue()],
        "repetition_penalty": 1.1, "top_k": 5, "top_p": 0.97, "min_p": 0.01,
    },
    "mirostat beside penalties": {
        **DRY, "mirostat": 2, "mirostat_tau": 1.5, "presence_penalty": 0.3, "logits_processors": [Fatigue()],
    },
}  # fmt: skip
DRAFTERS = {
    "suffix": lambda: {"method": "suffix"},
    "other law": lambda: {"drafter": TableDrafter(table(1))},
    "trees": lambda: {"drafter": TreeDrafter(table(0)), "tokens": 6},
}


def plain_of(setting, seeds=range(4)):
    requests = [params(seed=seed, **SETTINGS[setting]) for seed in seeds]
    return ids(engine(table(), method=None).generate(PROMPTS, requests)), requests


@pytest.mark.parametrize("setting", SETTINGS)
def test_on_is_off(setting):
    plain, requests = plain_of(setting)
    assert [len(text) for text in plain] == [24] * 4
    without = ids(engine(table(), method=None).generate(PROMPTS, [params(seed=seed) for seed in range(4)]))
    assert plain != without  # the setting does something
    for name, drafter in DRAFTERS.items():
        speculative = engine(table(), num_slots=2, **drafter()).generate(PROMPTS, requests)
        assert ids(speculative) == plain, name
        accepted = sum(o.metrics.speculative_decoding["num_accepted_draft_tokens"] for o in speculative)
        drafted = sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in speculative)
        assert 0 < accepted < drafted, name


@pytest.mark.parametrize("setting", ["mirostat 2", "stateful processor", "xtc"])
@pytest.mark.parametrize("tokens", [1, 9])
def test_draft_length_changes_nothing(setting, tokens):
    plain, requests = plain_of(setting)
    llm = engine(table(), drafter=TableDrafter(table(1), ragged=False), tokens=tokens)
    assert ids(llm.generate(PROMPTS, requests)) == plain


def test_the_settings_share_a_batch():
    requests = [params(seed=seed, **fields) for seed, fields in enumerate(SETTINGS.values())]
    prompts = [[seed % VOCAB, 1] for seed in range(len(requests))]
    alone = [ids(engine(table(), method=None).generate([p], r))[0] for p, r in zip(prompts, requests, strict=True)]
    for name, drafter in DRAFTERS.items():
        assert ids(engine(table(), num_slots=5, **drafter()).generate(prompts, requests)) == alone, name


def test_one_processor_object_serves_many_requests():
    """Each request forks it; the object that was given stays as it was."""
    shared = Fatigue()
    requests = [params(seed=seed, logits_processors=[shared]) for seed in range(4)]
    together = ids(engine(table(), num_slots=4, method="suffix").generate(PROMPTS, requests))
    alone = []
    for prompt, seed in zip(PROMPTS, range(4), strict=True):
        request = params(seed=seed, logits_processors=[Fatigue()])
        alone += ids(engine(table(), method=None).generate([prompt], request))
    assert together == alone and shared.counts == [0] * VOCAB


def test_t35_a_processor_with_hidden_state_ends_its_request_and_no_other():
    class Counting:
        """Lowers a logit at every third call, committed or not."""

        num_calls = 0

        def __call__(self, token_ids, logits):
            self.num_calls += 1
            logits[self.num_calls % 3] -= 1.0
            return logits

    from draftproof.outputs import GenerationFailed

    requests = [params(seed=0), params(seed=1, logits_processors=[Counting()]), params(seed=2)]
    plain = ids(engine(table(), method=None).generate(PROMPTS[:1] * 3, [params(seed=seed) for seed in range(3)]))
    for method in (None, "suffix"):
        with pytest.raises(GenerationFailed, match="Counting: two calls with the same") as caught:
            engine(table(), num_slots=3, method=method).generate(PROMPTS[:1] * 3, requests)
        outputs = caught.value.outputs
        assert [output.error is None for output in outputs] == [True, False, True]
        assert [outputs[0].outputs[0].token_ids, outputs[2].outputs[0].token_ids] == [plain[0], plain[2]]
        assert outputs[1].outputs[0].token_ids == ()


def test_an_object_with_one_half_of_a_state_is_refused():
    class Half:
        def __call__(self, token_ids, logits):
            return logits

        def extended(self, token_id):
            return self

    with pytest.raises(ParameterError, match="logits_processors.*both fork"):
        engine(table(), method=None).generate([[1]], params(logits_processors=[Half()]))


STATEFUL = ["mirostat 1", "mirostat 2", "stateful processor", "xtc", "mirostat beside penalties"]


@pytest.mark.parametrize("setting", STATEFUL)
def test_states_outlive_preemption(setting, monkeypatch):
    """Too little room for four requests: some give up their slots, and go on later where they were."""
    from draftproof.engine.scheduler import Scheduler

    plain, requests = plain_of(setting)
    preempted = []
    right = Scheduler.preempt
    monkeypatch.setattr(
        Scheduler, "preempt", lambda self, request: (preempted.append(request), right(self, request))[1]
    )
    llm = engine(table(), num_slots=4, method="suffix", max_model_len=40, max_num_cached_tokens=50)
    assert ids(llm.generate(PROMPTS, requests)) == plain
    assert any(request.emitted for request in preempted)


@pytest.mark.parametrize("setting", STATEFUL)
def test_each_sample_has_states_and_coins_of_its_own(setting):
    request = params(seed=5, n=3, **SETTINGS[setting])

    def texts(llm):
        [output] = llm.generate([[1, 2, 3]], request)
        return [completion.token_ids for completion in output.outputs]

    plain = texts(engine(table(), method=None))
    assert len(set(plain)) == 3
    assert texts(engine(table(), num_slots=3, drafter=TableDrafter(table(1)))) == plain
