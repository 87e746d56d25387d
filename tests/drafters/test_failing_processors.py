"""A custom processor that fails after some tokens ends the same requests, at the same place, with any drafter or none.

A drafter asks the request's processors about tokens that may never be committed: what fails there ends the draft.
"""

import pytest

from draftproof import LLM, GenerationFailed, LawError, SamplingParams
from draftproof.core import Draft
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.forced import propose_after_forced
from draftproof.drafters.pruned import layers_of
from draftproof.drafters.tree import BestFirst, SampledTreeDrafter, Shares, TreeDrafter
from draftproof.drafters.tree.model_source import ModelSource
from draftproof.noise import KeyedNoise
from draftproof.sampling import resolve
from draftproof.targets.hf import HFTarget
from tests.drafters.learned.tiny import METHODS, VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.threads import one_thread

PROMPTS = [[(5 * index + 3 * place) % VOCAB_SIZE for place in range(3 + index)] for index in range(12)]
BAD = frozenset(range(0, VOCAB_SIZE, 16))


class FailsAfter:
    """A state that can't follow tokens of BAD. `failed` counts, for the test alone."""

    failed = 0

    def __init__(self, num_seen=0):
        self.num_seen = num_seen

    def __call__(self, token_ids, logits):
        return logits + 0.01 * self.num_seen

    def fork(self):
        return FailsAfter(self.num_seen)

    def extended(self, token_id):
        if token_id in BAD:
            FailsAfter.failed += 1
            raise RuntimeError("no state after this token")
        return FailsAfter(self.num_seen + 1)


def fails_on_rows(token_ids, logits):
    """A pure function that fails on the row after a token of BAD."""
    if token_ids[-1] in BAD:
        FailsAfter.failed += 1
        raise RuntimeError("no row after this token")
    return logits


PROCESSORS = {"extended": FailsAfter(), "call": fails_on_rows}


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture(scope="module")
def target():
    with one_thread():
        return tiny_target(num_slots=4)


def told(llm, name):
    """Of each request: its token ids, and the position and words of its error."""
    many = [
        SamplingParams(
            seed=seed, max_tokens=10, detokenize=False, ignore_eos=True, logits_processors=[PROCESSORS[name]]
        )
        for seed in range(len(PROMPTS))
    ]
    with pytest.raises(GenerationFailed) as failed:
        llm.generate(PROMPTS, many)
    found = []
    for output in failed.value.outputs:
        error = output.error
        assert error is None or isinstance(error, LawError)
        found.append((output.outputs[0].token_ids, error and error.position, error and error.message))
    return found


def draft_model(target):
    own = HFTarget(layers_of(target.model, [0]), num_slots=target.num_slots)
    llm = LLM.from_target(target, None)
    return DraftModelDrafter(own, llm.chain, target_tokenizer=None, draft_tokenizer=None)


def with_drafter(target, drafter, **more):
    config = {"method": "ngram", "num_speculative_tokens": 4, "draft_length": "fixed", **more}
    return LLM.from_target(target, None, speculative_config=config, drafter=drafter)


DRAFTERS = {
    "draft_model": draft_model,
    "trees": lambda target: TreeDrafter(ModelSource(draft_model(target)), BestFirst(4, 4, max_rounds=3), Shares()),
    "drawn trees": lambda target: SampledTreeDrafter(ModelSource(draft_model(target)), "independent", max_depth=3),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_draft_model_changes_neither_text_nor_errors(target, drafter, name):
    check(target, name, lambda: with_drafter(target, DRAFTERS[drafter](target)))


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("topology", ["chain", "tree"])
@pytest.mark.parametrize("method", METHODS)
def test_a_learned_drafter_changes_neither_text_nor_errors(target, tmp_path, method, topology, name):
    config = {"method": config_method(method), "model": write_drafter(method, tmp_path), "draft_length": "fixed"}
    config |= {"num_speculative_tokens": 4, "topology": topology}
    if topology == "tree":
        config["num_tree_nodes"] = 8
    check(target, name, lambda: LLM.from_target(target, None, speculative_config=config))


def check(target, name, speculative):
    plain = told(LLM.from_target(target, None), name)
    ended = [error is not None for _, _, error in plain]
    assert any(ended) and not all(ended)
    FailsAfter.failed = 0
    assert told(speculative(), name) == plain
    # Some failures were a draft's alone, or the test would show nothing.
    assert FailsAfter.failed > sum(ended)


def test_what_a_grammar_forces_may_fail_too(target):
    """Forced tokens are a draft as well: the drafter is not asked after those that the state can't follow."""
    bad = min(BAD)
    params = SamplingParams(logits_processors=[FailsAfter()], detokenize=False)
    row = resolve(params, None, VOCAB_SIZE, [])
    request = DraftRequest(
        slot=0, context_ids=[1, 2], num_tokens=4, noise=KeyedNoise(1), row_params=row,
        history=row.first_history([1, 2]), forced_ids=(bad,), share_target_field=False,
    )  # fmt: skip
    assert propose_after_forced(draft_model(target), [request]) == [Draft.of_token_ids(2, [bad])]
