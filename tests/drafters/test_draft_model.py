"""A model that drafts: acceptance, cache arithmetic, laws, vocabularies and errors. Models are tiny and random."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.core import DrawnWith, Purpose
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.errors import LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from draftproof.verify import get_verifier
from tests.drafters.models import MAX_LENGTH, VOCAB_SIZE, fresh, probe_logits, tiny_llama, tiny_target
from tests.drafters.requests import verdict_of

CHAIN = SamplerChain(dtype="float64")
LOGIT_ERROR = 2e-5
"""Float32, logits of a few units, sums of 32 terms: forwards of different widths differ by some 1e-6."""
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PROMPT_LENGTH = 8
SETTINGS = {
    "greedy": dict(temperature=0.0),
    "plain": dict(temperature=1.0),
    "filters": dict(temperature=0.7, top_p=0.9, top_k=12),
    "penalties": dict(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5),
}


def drafter_of(model, num_slots=1):
    target = model if isinstance(model, HFTarget) else HFTarget(model, num_slots=num_slots)
    return DraftModelDrafter(target, CHAIN, target_tokenizer=None, draft_tokenizer=None)


def row_params_of(vocab_size=VOCAB_SIZE, **params):
    return resolve(SamplingParams(**{"temperature": 1.0, **params}), None, vocab_size)


def request_of(context_ids, num_tokens, *, row_params=None, seed=1, slot=0, share=True, num_prompt=PROMPT_LENGTH):
    return DraftRequest(
        slot=slot,
        context_ids=context_ids,
        num_tokens=num_tokens,
        noise=KeyedNoise(seed),
        share_target_field=share,
        row_params=row_params or row_params_of(),
        history=History(context_ids[:num_prompt], context_ids[num_prompt:]),
    )


class Decoder:
    """One request decoded by hand: propose, score, verify, commit, rewind, observe."""

    def __init__(self, target, drafter, verifier, row_params, seed):
        self.target, self.drafter, self.verifier = target, drafter, get_verifier(verifier)
        self.row_params, self.noise, self.context_ids = row_params, KeyedNoise(seed), list(PROMPT)
        self.seed = seed
        target.prefill(0, PROMPT[:-1])

    def round(self, num_tokens):
        """One pass; (draft, verdict)."""
        share = self.verifier.guarantee == "replay"
        request = request_of(self.context_ids, num_tokens, row_params=self.row_params, seed=self.seed, share=share)
        (draft,) = self.drafter.propose([request])
        logits = self.target.score([ScoreRequest(0, (self.context_ids[-1], *draft.token_ids))])[0]
        histories = [request.history.extended(draft.token_ids[:node]) for node in range(len(draft) + 1)]
        verdict = self.verifier.verify(draft, CHAIN.laws(logits, self.row_params, histories), self.noise)
        self.context_ids.extend(verdict.token_ids)
        self.target.rewind(0, len(self.context_ids) - 1)
        self.drafter.observe(0, self.context_ids, verdict)
        return draft, verdict


@pytest.mark.parametrize("settings", list(SETTINGS))
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5])
def test_t63_a_drafter_that_is_the_target_is_always_accepted(settings, num_tokens):
    """At every length, round after round, so after full acceptance too.

    Error budget: forwards of different widths differ by some 1e-6, which flips a choice with about that
    probability; some 400 choices in all cells together, with fixed seeds.
    """
    model = tiny_llama(1)
    params = row_params_of(**SETTINGS[settings])
    verifier = "greedy" if settings == "greedy" else "keyed"
    decoder = Decoder(HFTarget(model), drafter_of(model), verifier, params, seed=11)
    for _ in range(30 // (num_tokens + 1)):
        draft, verdict = decoder.round(num_tokens)
        assert len(draft) == num_tokens and verdict.num_accepted == num_tokens


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_ratio_tests_accept_all_from_the_target_itself(verifier):
    """p = q but for rounding. Error budget: each of 30 coins fails with about 1e-6, with fixed seeds."""
    model = tiny_llama(2)
    decoder = Decoder(HFTarget(model), drafter_of(model), verifier, row_params_of(), seed=12)
    for _ in range(10):
        draft, verdict = decoder.round(3)
        assert draft.drawn_with is DrawnWith.FRESH
        assert verdict.num_accepted == 3


@pytest.mark.parametrize("num_tokens", [1, 2, 4])
def test_t58_both_caches_are_a_fresh_prefill_after_every_accept_length(num_tokens):
    """0..num_tokens accepted: the target holds all but the newest token; so does the drafter once its first forward
    ran, and before that too, except for the last draft after full acceptance."""
    target_model, draft_model = tiny_llama(3), tiny_llama(4)
    for num_accepted in range(num_tokens + 1):
        drafter = drafter_of(draft_model)
        (draft,) = drafter.propose([request_of(PROMPT, num_tokens)])
        assert drafter.model.length(0) == len(PROMPT) + num_tokens - 1
        recovered = (draft.token_ids[num_accepted] + 1) % VOCAB_SIZE if num_accepted < num_tokens else 7
        emitted = [*draft.token_ids[:num_accepted], recovered]
        context_ids = PROMPT + emitted
        drafter.observe(0, context_ids, verdict_of(emitted))
        lacks = 1 if num_accepted == num_tokens else 0
        assert drafter.model.length(0) == len(context_ids) - 1 - lacks
        expected = probe_logits(fresh(draft_model, context_ids[: len(context_ids) - 1 - lacks]))
        assert torch.allclose(probe_logits(drafter.model), expected, rtol=0, atol=LOGIT_ERROR)
        (second,) = drafter.propose([request_of(context_ids, 1)])
        assert drafter.model.length(0) == len(context_ids)
        assert torch.allclose(
            probe_logits(drafter.model), probe_logits(fresh(draft_model, context_ids)), atol=LOGIT_ERROR
        )
        (anew,) = drafter_of(draft_model).propose([request_of(context_ids, 1)])
        assert second.token_ids == anew.token_ids
        assert np.allclose(second.laws[0].at(None, VOCAB_SIZE), anew.laws[0].at(None, VOCAB_SIZE), atol=LOGIT_ERROR)

    decoder = Decoder(HFTarget(target_model), drafter_of(draft_model), "keyed", row_params_of(), seed=13)
    seen = set()
    for _ in range(12):
        _, verdict = decoder.round(num_tokens)
        seen.add(verdict.num_accepted)
        assert decoder.target.length(0) == len(decoder.context_ids) - 1
        expected = probe_logits(fresh(target_model, decoder.context_ids[:-1]))
        assert torch.allclose(probe_logits(decoder.target), expected, rtol=0, atol=LOGIT_ERROR)
    assert 0 in seen


@pytest.mark.parametrize("settings", list(SETTINGS))
def test_each_law_is_the_chain_on_the_drafters_own_logits(settings):
    """Row by row, with the history extended by the drafts: what a fresh prefill and the chain give."""
    model, params = tiny_llama(5), row_params_of(**SETTINGS[settings])
    (draft,) = drafter_of(model).propose([request_of(PROMPT, 4, row_params=params, share=False)])
    for node in range(4):
        seen = [*PROMPT, *draft.token_ids[:node]]
        target = HFTarget(model)
        target.prefill(0, seen[:-1])
        logits = target.score([ScoreRequest(0, (seen[-1],))])[0]
        (law,) = CHAIN.laws(logits, params, [History(PROMPT, draft.token_ids[:node])])
        assert type(law) is type(draft.laws[node])
        assert np.allclose(law.at(None, VOCAB_SIZE), draft.laws[node].at(None, VOCAB_SIZE), rtol=0, atol=LOGIT_ERROR)


class RecordingNoise:
    """Passes every question on and keeps its key."""

    def __init__(self, seed):
        self.noise, self.keys = KeyedNoise(seed), []

    def choice(self, key, weights, token_ids=None):
        self.keys.append(key)
        return self.noise.choice(key, weights, token_ids)

    def coin(self, key, numerator, denominator=1):
        raise AssertionError("a drafter tosses no coin")


def test_which_noise_it_draws_from():
    for share, expected in (
        (True, [(Purpose.TARGET, len(PROMPT) + node, 0) for node in range(3)]),
        (False, [(Purpose.DRAFT, len(PROMPT), node) for node in range(3)]),
    ):
        noise = RecordingNoise(21)
        request = replace(request_of(PROMPT, 3, share=share), noise=noise)
        (draft,) = drafter_of(tiny_llama(6)).propose([request])
        assert noise.keys == expected
        assert draft.drawn_with is (DrawnWith.TARGET_FIELD if share else DrawnWith.FRESH)


def test_a_ragged_batch_equals_single_requests():
    model = tiny_llama(7)
    contexts = [PROMPT, PROMPT[:3], [*PROMPT, 11, 12, 13], PROMPT[:5]]
    lengths = [3, 0, 5, 1]
    batch = drafter_of(model, num_slots=4)
    for step in range(3):
        requests = [
            request_of(ids, length, seed=slot, slot=slot, num_prompt=3)
            for slot, (ids, length) in enumerate(zip(contexts, lengths, strict=True))
        ]
        drafts = batch.propose(requests)
        for request, draft in zip(requests, drafts, strict=True):
            (alone,) = drafter_of(model, num_slots=4).propose([request])
            assert draft.token_ids == alone.token_ids and draft.start == len(request.context_ids)
            assert len(draft) == request.num_tokens
        emitted = [[*draft.token_ids[: step % 3], 2] for draft in drafts]
        contexts = [[*ids, *new] for ids, new in zip(contexts, emitted, strict=True)]
        for slot, new in enumerate(emitted):
            batch.observe(slot, contexts[slot], verdict_of(new))


def test_a_repeated_propose_gives_the_same_draft():
    drafter = drafter_of(tiny_llama(8))
    first = drafter.propose([request_of(PROMPT, 4)])[0]
    again = drafter.propose([request_of(PROMPT, 4)])[0]
    assert again.token_ids == first.token_ids and drafter.model.length(0) == len(PROMPT) + 3


def test_a_replaced_or_cut_context_is_read_anew():
    model = tiny_llama(8)
    drafter = drafter_of(model)
    drafter.propose([request_of(PROMPT, 4)])
    for context_ids in ([*PROMPT[:4], 20, 21], [9, 9, 9], PROMPT[:2]):
        (draft,) = drafter.propose([request_of(context_ids, 3, num_prompt=1)])
        (anew,) = drafter_of(model).propose([request_of(context_ids, 3, num_prompt=1)])
        assert draft.token_ids == anew.token_ids
    drafter.release(0)
    assert drafter.model.length(0) == 0
    drafter.release(0)


def test_t64_a_wider_drafter_never_drafts_what_the_target_lacks():
    """Drafter 24 ids, target 20: the drafter's favourite ids are 20 to 23, and none of them is ever drafted."""
    model = tiny_llama(9)
    with torch.no_grad():
        model.lm_head.weight[20:] = 0.0
        model.lm_head.weight[20:] += 5.0 * model.lm_head.weight[:20].abs().max()
    params = row_params_of(vocab_size=20)
    for seed in range(20):
        (draft,) = drafter_of(model).propose([request_of(PROMPT, 4, row_params=params, seed=seed)])
        assert len(draft) == 4 and max(draft.token_ids) < 20
        assert all(law.at(None, 24)[20:].sum() == 0 for law in draft.laws)


@pytest.mark.parametrize("verifier", ["keyed", "rejection"])
def test_t64_a_narrower_drafter_leaves_the_other_ids_to_the_target(verifier):
    """Drafter 18 ids, target 24: laws are 0 beyond 17; a context with such an id is not drafted for."""
    model = tiny_llama(10, vocab_size=18)
    decoder = Decoder(HFTarget(tiny_llama(11)), drafter_of(model), verifier, row_params_of(), seed=14)
    seen_empty = False
    for _ in range(12):
        readable = max(decoder.context_ids) < 18
        draft, _ = decoder.round(3)
        assert len(draft) == (3 if readable else 0)
        assert all(law.prob(token_id) == 0 for law in draft.laws for token_id in range(18, 24))
        seen_empty |= not readable
    assert seen_empty, "the target never emitted an id that the drafter lacks: choose another seed"


def test_t64_masks_that_leave_the_drafter_nothing_end_the_draft():
    params = row_params_of(allowed_token_ids=[20, 21])
    (draft,) = drafter_of(tiny_llama(10, vocab_size=18)).propose([request_of(PROMPT, 3, row_params=params)])
    assert len(draft) == 0 and draft.start == len(PROMPT)


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 18])
def test_nan_logits_are_an_error_that_names_the_drafter(vocab_size):
    """A narrower drafter's too: its bad row is not taken for one that masks have emptied."""
    drafter = drafter_of(tiny_llama(12, vocab_size=vocab_size))
    with torch.no_grad():
        drafter.model.model.lm_head.weight[3, 0] = torch.nan
    with pytest.raises(LawError, match=r"position 8: drafter draft_model, slot 0: .*NaN"):
        drafter.propose([request_of(PROMPT, 2)])


def test_the_draft_ends_where_the_drafters_length_does():
    model = tiny_llama(13)
    long_context = [index % VOCAB_SIZE for index in range(MAX_LENGTH - 2)]
    (draft,) = drafter_of(model).propose([request_of(long_context, 8)])
    assert len(draft) == 3
    full = [*long_context, 1, 2, 3]
    drafter = drafter_of(model)
    assert len(drafter.propose([request_of(full, 8)])[0]) == 0
    assert drafter.model.length(0) == 0


def test_no_tokens_asked_no_work_done():
    drafter = drafter_of(tiny_target(13))
    (draft,) = drafter.propose([request_of(PROMPT, 0)])
    assert (len(draft), draft.start, drafter.model.length(0)) == (0, len(PROMPT), 0)
    assert drafter.confidence(0, PROMPT) is None and drafter.proposes_without_confidence


def test_one_tokenizer_alone_is_refused():
    with pytest.raises(ParameterError, match="draft_tokenizer"):
        DraftModelDrafter(tiny_target(1), CHAIN, target_tokenizer=object(), draft_tokenizer=None)
