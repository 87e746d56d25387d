"""Speculation on = off with learned drafters, and the laws that their tokens are drawn from."""

import numpy as np
import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.core import Dense, DrawnWith, PointMass, Sparse
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.load import load_block_drafter, load_chain_drafter
from draftproof.drafters.lookup_first import LookupFirst
from draftproof.drafters.tree.with_lookup import WithLookup
from draftproof.noise import KeyedNoise
from draftproof.sampling import History, SamplerChain
from tests.drafters.learned.tiny import METHODS, VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.threads import one_thread

NUM_PROMPTS, NUM_TOKENS = 3, 20
PROMPTS = [[(5 * index + 3 * place) % VOCAB_SIZE for place in range(3 + index)] for index in range(NUM_PROMPTS)]


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def target(request):
    with one_thread():
        return tiny_target(num_slots=3, dtype=request.param)


@pytest.fixture(scope="module")
def plain_ids(target):
    return {t: [o.outputs[0].token_ids for o in generate(LLM.from_target(target, None), t)] for t in (0.0, 1.0)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {method: write_drafter(method, tmp_path_factory.mktemp("drafter")) for method in METHODS}


def generate(llm, temperature, **more):
    shared = {"max_tokens": NUM_TOKENS, "detokenize": False, "ignore_eos": True, "temperature": temperature}
    many = [SamplingParams(seed=seed, **shared, **more) for seed in range(NUM_PROMPTS)]
    return llm.generate(PROMPTS, many)


def speculative(target, folder, method, num_tokens, **more):
    config = {"method": config_method(method), "model": folder, "num_speculative_tokens": num_tokens}
    return LLM.from_target(target, None, speculative_config=config | {"draft_length": "fixed"} | more)


@pytest.mark.parametrize("num_tokens", [4, 7, 15])
@pytest.mark.parametrize("method", METHODS)
def test_on_is_off(target, plain_ids, folders, method, num_tokens):
    llm = speculative(target, folders[method], method, num_tokens)
    drafted = accepted = 0
    for temperature in (0.0, 1.0):
        outputs = generate(llm, temperature)
        assert [output.outputs[0].token_ids for output in outputs] == plain_ids[temperature]
        for output in outputs:
            drafted += output.metrics.speculative_decoding["num_draft_tokens"]
            accepted += output.metrics.speculative_decoding["num_accepted_draft_tokens"]
    # Without drafts, acceptances and rejections that rewind both caches, equality would show nothing.
    assert accepted > 3 and drafted - accepted > 100


@pytest.mark.parametrize("verifier", ["keyed", "block"])
@pytest.mark.parametrize("method", ["dspark", "eagle3"])
def test_lookups_and_the_drafter_take_turns(target, folders, method, verifier, monkeypatch):
    """A drafter that is left out for some passes takes in what it missed: it drafts as one that is asked anew."""
    prompts = [[3, 5, 7, 11, 3, 5, 7], [3, 7, 3, 7, 5], [11, 5, 11]]
    shared = {"max_tokens": NUM_TOKENS, "detokenize": False, "ignore_eos": True, "allowed_token_ids": [3, 5, 7, 11]}
    many = [SamplingParams(seed=seed, **shared) for seed in range(3)]
    asked = []
    found = LookupFirst.propose

    def counted(self, requests):
        drafts = found(self, requests)
        for request, draft, lookup in zip(requests, drafts, self.lookup.propose(requests), strict=True):
            if not len(lookup):
                # With the context's keys computed anew, the drafter proposes the same.
                self.drafter.release(request.slot)
                [again] = self.drafter.propose([request])
                assert again.token_ids == draft.token_ids
            asked.append(bool(len(lookup)))
        return drafts

    monkeypatch.setattr(LookupFirst, "propose", counted)
    llm = speculative(target, folders[method], method, 4, lookup_first=2, verifier=verifier)
    outputs = llm.generate(prompts, many)
    assert 4 < sum(asked) < len(asked) - 4
    if verifier == "keyed":
        plain = LLM.from_target(target, None).generate(prompts, many)
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]


@pytest.mark.parametrize("method", METHODS)
def test_trees(target, plain_ids, folders, method):
    """A block's laws give trees, by depth or after the token before; a chain drafter's, round by round."""
    llm = speculative(target, folders[method], method, 6, topology="tree", num_tree_nodes=12)
    assert [output.outputs[0].token_ids for output in generate(llm, 1.0)] == plain_ids[1.0]


@pytest.mark.parametrize("method", METHODS)
def test_trees_with_lookups(target, folders, method):
    """Of texts that repeat themselves, so that lookups take part, rightly and wrongly."""
    prompts = [[2, 4, 6, 10, 2, 4, 6], [2, 6, 2, 6, 4], [10, 4, 10]]
    shared = {"max_tokens": NUM_TOKENS, "detokenize": False, "ignore_eos": True, "allowed_token_ids": [2, 4, 6, 10]}
    many = [SamplingParams(seed=seed, temperature=float(seed > 0), **shared) for seed in range(3)]
    llm = speculative(target, folders[method], method, 6, topology="tree", num_tree_nodes=12, lookup_first=2)
    outputs = llm.generate(prompts, many)
    plain = LLM.from_target(target, None).generate(prompts, many)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert isinstance(llm.drafter.source, WithLookup)
    assert llm.drafter.source._weights


@pytest.fixture(scope="module")
def loose_target():
    return tiny_target(invariant=False)


def drafter_of(method, folder, target):
    load = load_chain_drafter if config_method(method) in ("mtp", "eagle3") else load_block_drafter
    return load(folder, target, SamplerChain(), method=config_method(method))


def ask(target, context_ids, *, share, power=1.0, temperature=1.0, num_tokens=4, slot=0, seed=3):
    params = SamplerChain().resolve(SamplingParams(temperature=temperature), None, VOCAB_SIZE)
    return DraftRequest(slot, context_ids, num_tokens, KeyedNoise(seed), share, params, History(context_ids),
                        law_power=power)  # fmt: skip


LAWS = {"dflash": PointMass, "dflash 2": Sparse, "dspark": Dense, "mtp": Dense, "eagle3": Dense}


@pytest.mark.parametrize("method", METHODS)
def test_law_types(loose_target, folders, method):
    """What each verifier family is handed: the issue's table."""
    context = [3, 9, 27, 14, 5]
    drafter = drafter_of(method, folders[method], loose_target)
    loose_target.prefill(0, context[:-1])
    try:
        [fresh] = drafter.propose([ask(loose_target, context, share=False)])
        [shared] = drafter.propose([ask(loose_target, context, share=True)])
        [sharp] = drafter.propose([ask(loose_target, context, share=False, power=3.0)])
        [greedy] = drafter.propose([ask(loose_target, context, share=True, temperature=0.0)])
    finally:
        loose_target.release(0)
        drafter.release(0)
    assert {type(law) for law in fresh.laws} == {LAWS[method]}
    assert fresh.drawn_with is (DrawnWith.NOTHING if method == "dflash" else DrawnWith.FRESH)
    assert shared.drawn_with is DrawnWith.TARGET_FIELD
    assert {type(law) for law in greedy.laws} == {PointMass}
    assert {type(law) for law in sharp.laws} == {Sparse if method == "dflash 2" else Dense}
    assert sharp.drawn_with is DrawnWith.FRESH
    for law in (*fresh.laws, *sharp.laws, *shared.laws):
        values, _ = law.weights()
        np.testing.assert_allclose(float(np.sum(values)), 1.0, atol=1e-5)
    if method == "eagle3":
        assert all(token_id % 2 == 0 for token_id in fresh.token_ids)  # d2t: every other token
        assert not fresh.laws[0].weights()[0][1::2].any()
    if method == "dflash 2":
        assert all(len(law.token_ids) == 8 for law in fresh.laws)


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize("method", METHODS)
def test_ratio_tests_run(target, folders, method, verifier):
    """A token is accepted under the law that it was drawn from: the verifiers refuse every other pair."""
    outputs = generate(speculative(target, folders[method], method, 4, verifier=verifier), 1.0)
    assert all(len(output.outputs[0].token_ids) == NUM_TOKENS for output in outputs)


def test_confidence_stops_before_the_draw(loose_target, folders):
    """Truncation looks at no token that it drops: the draft under a threshold is a prefix of the one without, drawn
    with the same keys, and it isn't marked as anticipating, so that ratio tests take it."""
    context = [3, 9, 27, 14, 5]
    full = load_block_drafter(folders["dspark"], loose_target, SamplerChain(), method="dspark")
    loose_target.prefill(0, context[:-1])
    lengths = set()
    for seed in range(20):
        [long] = full.propose([ask(loose_target, context, share=False, num_tokens=full.layout.num_drafts, seed=seed)])
        full.confidence_threshold = 0.5
        [short] = full.propose([ask(loose_target, context, share=False, num_tokens=full.layout.num_drafts, seed=seed)])
        full.confidence_threshold = 0.0
        assert short.token_ids == long.token_ids[: len(short)]
        assert not short.anticipating
        lengths.add(len(short))
    loose_target.release(0)
    full.release(0)
    assert len(lengths) > 1
