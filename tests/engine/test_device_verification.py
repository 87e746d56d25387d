"""Passes verified by the kernels, on Triton's interpreter here, have the tokens of the reference way."""

import dataclasses

import numpy as np
import pytest
import torch

from draftproof import LLM
from draftproof.core import Dense, Draft, Sparse
from draftproof.engine.device_inputs import Pass, joined
from draftproof.engine.device_verification import DeviceVerification
from draftproof.kernels import Requests
from draftproof.outputs import GenerationFailed
from draftproof.sampling import SamplerChain
from draftproof.targets.toy import TableTarget
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.tables import engine, ids, params, table

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf

VOCAB = 37
PROMPTS = [[1, 2, 3], [0], [4, 4, 1, 4, 4], [5, 0, 5], [36, 1], [7, 7]]
CHANGES = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
    "logit_bias": {1: 2.0, 3: -1.5},
}
MASKS = {"allowed_token_ids": [0, 1, 2, 3, 5, 8, 13, 21], "min_tokens": 3, "stop_token_ids": [2]}
KINDS = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
    {"top_p": 0.7, **CHANGES},
    {"min_p": 0.05, **MASKS},
    {"temperature": 1.3, "no_repeat_ngram_size": 2, **CHANGES},
]


class Watched(DeviceVerification):
    """Counts passes by what became of them."""

    num_verified = num_left = 0

    def verify(self, passes):
        verdicts = super().verify(passes)
        self.num_left += sum(verdict is None for verdict in verdicts)
        self.num_verified += sum(verdict is not None for verdict in verdicts)
        return verdicts


class Float32Drafter(TableDrafter):
    """Draws from laws in float32 as drafters make them, every third of them sparse, a point mass, or dense."""

    kinds = (Dense,)

    def _propose(self, request):
        draft, context = Draft.empty(len(request.context_ids)), tuple(request.context_ids)
        for depth in range(min(request.num_tokens, 1 + len(context) % 4)):
            probs = np.array(self.table.probs((*context, *draft.token_ids)), dtype=np.float32)
            kind = self.kinds[(len(context) + depth) % len(self.kinds)]
            if kind is Sparse:
                top = np.sort(np.argsort(-probs)[:5])
                law = Sparse(top, probs[top] / probs[top].sum())
            else:
                law = Dense(probs / probs.sum())
            draft = draft.draw(law, request.noise, share_target_field=request.share_target_field)
        return draft


class SparseDrafter(Float32Drafter):
    """Sparse laws and dense ones by turns."""

    kinds = (Sparse, Dense)


class ShortDrafter(Float32Drafter):
    """Sparse laws alone."""

    kinds = (Sparse,)


def tables(seed=0):
    return table(seed, vocab_size=VOCAB)


def on_device(llm, mode="raw_logprobs"):
    """The LLM with passes verified by the kernels; the watcher."""
    watched = Watched(llm.engine.machinery.chain, mode)
    llm.engine.machinery = dataclasses.replace(llm.engine.machinery, verification=watched)
    return llm, watched


def both(make, requests, prompts=PROMPTS):
    """(the reference way's outputs, the kernels', the watcher)."""
    expected = make().generate(prompts, requests)
    llm, watched = on_device(make())
    return expected, llm.generate(prompts, requests), watched


def requests(kinds=KINDS, max_tokens=4, **more):
    return [params(seed=seed, max_tokens=max_tokens, **kind, **more) for seed, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    "drafter",
    [
        {"method": None},
        {"drafter": TableDrafter(tables(0))},
        {"drafter": TreeDrafter(tables(0)), "tokens": 6, "verifier": "match"},
        {"method": "ngram", "verifier": "rejection"},
        {"drafter": ShortDrafter(tables(1)), "verifier": "rejection"},
        {"drafter": SparseDrafter(tables(0)), "verifier": "block"},
    ],
    ids=["plain", "keyed", "match, trees", "rejection, point masses", "rejection, sparse laws", "block, dense laws"],
)
def test_a_mixed_batch_has_the_references_tokens(drafter):
    expected, found, watched = both(lambda: engine(tables(), num_slots=6, **drafter), requests())
    assert ids(found) == ids(expected)
    assert watched.num_left == 0 and watched.num_verified >= 10
    for one, other in zip(found, expected, strict=True):
        assert one.metrics.speculative_decoding == other.metrics.speculative_decoding


def test_trees_under_keyed_replay_plain_decoding():
    kinds = [KINDS[0], KINDS[3], KINDS[4]]
    plain, _ = on_device(engine(tables(), num_slots=3, method=None))
    trees, watched = on_device(engine(tables(), num_slots=2, drafter=TreeDrafter(tables(0)), tokens=6))
    given = requests(kinds, max_tokens=6)
    assert ids(trees.generate(PROMPTS[:3], given)) == ids(plain.generate(PROMPTS[:3], given))
    assert watched.num_left == 0


UNCOVERED = {
    "typical_p": {"typical_p": 0.8},
    "xtc": {"xtc_probability": 0.5},
    "mirostat": {"mirostat": 2},
    "processed logprobs": {"logprobs": 2},
    "a temperature that float32 can't divide by": {"temperature": 1e-31},
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_the_kernels_do_not_take_goes_the_reference_way(name):
    mode = "processed_logprobs" if "logprobs" in UNCOVERED[name] else "raw_logprobs"
    given = requests([UNCOVERED[name], {}])

    def make():
        llm = engine(tables(), num_slots=2, drafter=TableDrafter(tables(0)))
        llm.engine.machinery = dataclasses.replace(llm.engine.machinery, logprobs_mode=mode)
        return llm

    expected = make().generate(PROMPTS[:2], given)
    llm, watched = on_device(make(), mode)
    found = llm.generate(PROMPTS[:2], given)
    assert ids(found) == ids(expected)
    assert [o.outputs[0].logprobs for o in found] == [o.outputs[0].logprobs for o in expected]
    assert watched.num_left > 0 and watched.num_verified > 0


def test_raw_logprobs_are_those_of_the_reference_way():
    expected, found, watched = both(
        lambda: engine(tables(), num_slots=2, drafter=TableDrafter(tables(0))), requests(KINDS[:2], logprobs=3),
        PROMPTS[:2],
    )  # fmt: skip
    assert [o.outputs[0].logprobs for o in found] == [o.outputs[0].logprobs for o in expected]
    assert watched.num_left == 0


class HiddenNaN(TableTarget):
    """NaN at a token that the request's mask forbids, once the context has 5 tokens; another request is unharmed."""

    def score(self, requests):
        found = super().score(requests)
        for request, rows in zip(requests, found, strict=True):
            if request.slot == 0 and self.length(0) >= 5:
                rows[:, 30] = float("nan")
        return found


def outcome_of_hidden_nan(kind, device):
    """(tokens, errors) of a request of this `kind` that meets a NaN, and of another."""
    llm = LLM.from_target(HiddenNaN(tables(), num_slots=2), None)
    if device:
        llm, _ = on_device(llm)
    with pytest.raises(GenerationFailed) as failed:
        llm.generate(PROMPTS[:2], requests([kind, {}]))
    return ids(failed.value.outputs), [str(output.error) for output in failed.value.outputs]


@pytest.mark.parametrize("kind", [{}, {"allowed_token_ids": list(range(10))}], ids=["seen", "masked"])
def test_a_row_that_is_no_law_ends_its_request_with_the_references_error(kind):
    expected = outcome_of_hidden_nan(kind, device=False)
    assert "NaN" in expected[1][0] and expected[1][1] == "None"
    assert outcome_of_hidden_nan(kind, device=True) == expected


def test_rows_that_lie_together_are_not_copied():
    logits = torch.arange(40.0).reshape(8, 5)
    parts = [logits[:2], logits[2:3], logits[3:7]]
    assert joined(parts).data_ptr() == logits.data_ptr()
    for rows in (parts, parts[::-1], [logits[:2], logits[3:4]], [logits[:2, :4], logits[2:3, :4]]):
        assert torch.equal(joined(rows), torch.cat(list(rows)))


def test_a_mask_that_fails_takes_no_other_request_with_it(monkeypatch):
    right = Pass.masks

    def masks(one, preset):
        if one.request.params.temperature == 0:
            raise ValueError("a grammar's bug")
        return right(one, preset)

    monkeypatch.setattr(Pass, "masks", masks)
    expected, found, watched = both(
        lambda: engine(tables(), num_slots=2, method=None), requests(KINDS[:2]), PROMPTS[:2]
    )
    assert ids(found) == ids(expected)
    assert watched.num_left == watched.num_verified == 4


def test_what_a_group_has_asked_for_stays_compiled():
    verification = DeviceVerification(SamplerChain("vllm"), "raw_logprobs")
    seen = []
    for kind in ({}, {"top_k": 3}, {"temperature": 0}, {"top_p": 0.5}):
        one = Requests.of([params(**kind)], [1], device="cpu")
        compiled = verification._as_compiled("a group", one)
        seen.append((compiled.races, compiled.top_p_alone, compiled.lists))
    assert seen == [(True, False, False), (True, False, True), (True, False, True), (True, True, True)]
