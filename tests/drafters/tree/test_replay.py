"""Keyed trees: speculation on = off under `invariant`, whatever the builder, the noise's weight, nodes and temperature.

A tiny random llama in float32 whose drafter has two of its layers; 3 requests at once with penalties, stop tokens and
bad luck of their own. What trees change must not show: the texts are compared token by token.
"""

import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.pruned import layers_of
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.drafters.tree import BestFirst, SampledTreeDrafter, Shares, Static, TopK, TreeDrafter, TunedShares
from draftproof.drafters.tree.lookup_sources import SuffixSource
from draftproof.drafters.tree.model_source import ModelSource
from draftproof.drafters.tree.static import paths_for, shape_for
from draftproof.drafters.tree.tuning import arms_of
from draftproof.targets.hf import HFTarget
from draftproof.targets.toy import TableTarget
from draftproof.verify import get_verifier
from tests.drafters.tree.tables import TableSource, uneven_table
from tests.targets.models import tiny_model

NUM_TOKENS = 12
BUILDERS = {"best_first": BestFirst(6, 6, max_rounds=4), "top_k": TopK(5, 4), "static": Static(5)}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4], [7, 7, 7], [20, 21, 22, 23, 20, 21]]


def params(temperature):
    return [
        SamplingParams(temperature=temperature, seed=1, max_tokens=NUM_TOKENS, detokenize=False, ignore_eos=True),
        SamplingParams(
            temperature=temperature,
            seed=2,
            max_tokens=NUM_TOKENS,
            detokenize=False,
            repetition_penalty=1.3,
            presence_penalty=0.6,
            frequency_penalty=0.4,
        ),
        SamplingParams(
            temperature=temperature,
            seed=3,
            max_tokens=NUM_TOKENS,
            detokenize=False,
            stop_token_ids=list(range(0, 64, 9)),
            min_tokens=6,
            top_p=0.95,
            logit_bias={5: 2.0},
        ),
    ]


@pytest.fixture(scope="module")
def target():
    return HFTarget(tiny_model("llama", torch.float32), num_slots=3, max_model_len=192, invariant=True, width=80)


@pytest.fixture(scope="module")
def plain_ids(target):
    cache = {}

    def of(temperature):
        if temperature not in cache:
            outputs = LLM.from_target(target, None).generate(PROMPTS, params(temperature))
            cache[temperature] = [output.outputs[0].token_ids for output in outputs]
        return cache[temperature]

    return of


def engine(target, drafter, num_nodes, **config):
    settings = {"topology": "tree", "num_tree_nodes": num_nodes, "draft_length": "fixed", **config}
    return LLM.from_target(target, None, speculative_config=settings, drafter=drafter)


def model_source(target):
    smaller = HFTarget(layers_of(target.model, (0, 1)), num_slots=target.num_slots)
    chain = LLM.from_target(target, None).chain
    return ModelSource(DraftModelDrafter(smaller, chain, target_tokenizer=None, draft_tokenizer=None))


def counts(outputs, name):
    return sum(output.metrics.speculative_decoding[name] for output in outputs)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("num_nodes", [8, 32, 64])
@pytest.mark.parametrize("noise_weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("builder", BUILDERS)
def test_on_is_off(target, plain_ids, builder, noise_weight, num_nodes, temperature):
    drafter = TreeDrafter(model_source(target), BUILDERS[builder], Shares(noise_weight))
    outputs = engine(target, drafter, num_nodes).generate(PROMPTS, params(temperature))
    assert [output.outputs[0].token_ids for output in outputs] == plain_ids(temperature)
    drafted, accepted = counts(outputs, "num_draft_tokens"), counts(outputs, "num_accepted_draft_tokens")
    # Without rejections that rewind a tree, and acceptances that keep a path, equality would show nothing.
    assert 0 < accepted < drafted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tuned_shares_and_look_ups_replay_too(target, plain_ids, temperature):
    for source in (model_source(target), SuffixSource(SuffixDrafter(min_match_length=1))):
        drafter = TreeDrafter(source, BestFirst(6, 8, max_rounds=5), TunedShares(arms_of(None, None)))
        outputs = engine(target, drafter, 24).generate(PROMPTS, params(temperature))
        assert [output.outputs[0].token_ids for output in outputs] == plain_ids(temperature)
        assert counts(outputs, "num_draft_tokens") > 0


def test_noise_is_worth_something(target):
    """The same tree with the noise commits more, seeds fixed; its drafter is far from its target."""
    accepted = {}
    for noise_weight in (0.0, 1.0):
        drafter = TreeDrafter(model_source(target), BUILDERS["best_first"], Shares(noise_weight))
        many = [
            SamplingParams(temperature=1.0, seed=seed, max_tokens=30, detokenize=False, ignore_eos=True)
            for seed in range(6)
        ]
        outputs = engine(target, drafter, 16).generate([PROMPTS[0]] * 6, many)
        accepted[noise_weight] = counts(outputs, "num_accepted_draft_tokens") / counts(outputs, "num_spec_steps")
    assert accepted[1.0] > 1.1 * accepted[0.0]


TREE_RULES = ("recursive", "traversal", "hybrid", "multi_round", "k_seq", "multi_path_block")


@pytest.mark.parametrize("name", TREE_RULES)
def test_drawn_trees_run_through_the_engine(name):
    """600 first tokens of a table: each of 4 probabilities within Hoeffding's bound, 8 exp(-2 N d^2) = 1e-6."""
    table, num_seeds = uneven_table(4, 3), 600
    verifier = get_verifier(name)
    shape = shape_for if verifier.supports_branches_below else paths_for
    drafter = SampledTreeDrafter(TableSource(uneven_table(4, 8)), verifier.siblings, max_depth=3, shape=shape)
    llm = engine(TableTarget(table), drafter, 6, verifier=name)
    many = [SamplingParams(seed=seed, max_tokens=2, detokenize=False) for seed in range(num_seeds)]
    outputs = llm.generate([[1, 2]] * num_seeds, many)
    first = [output.outputs[0].token_ids[0] for output in outputs]
    for token, prob in enumerate(table.probs((1, 2))):
        assert abs(first.count(token) / num_seeds - float(prob)) < 0.1152
    assert 0 < counts(outputs, "num_accepted_draft_tokens") < counts(outputs, "num_draft_tokens")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_budgets_that_look_at_the_clock_and_the_draft_replay_too(target, plain_ids, temperature):
    """draft_length auto: trees are grown or not, and cut, by measured times; the text is plain decoding's."""
    drafter = TreeDrafter(model_source(target), BestFirst(6, 8, max_rounds=5), TunedShares(arms_of(None, None)))
    llm = engine(target, drafter, 24, draft_length="auto")
    for _ in range(3):
        outputs = llm.generate(PROMPTS, params(temperature))
        assert [output.outputs[0].token_ids for output in outputs] == plain_ids(temperature)
    assert counts(outputs, "num_draft_tokens") + counts(outputs, "num_plain_steps") > 0


@pytest.mark.parametrize("name", ["match", *TREE_RULES])
def test_a_seed_gives_one_text_under_exact_law_rules_too(name):
    """Budgets by a fixed table and nothing learned from other requests: an engine's earlier requests change nothing."""
    table = uneven_table(5, 2)
    request = SamplingParams(seed=4, max_tokens=24, detokenize=False)

    def run(num_before):
        settings = {
            "method": "suffix",
            "prompt_lookup_min": 1,
            "topology": "tree",
            "num_tree_nodes": 8,
            "verifier": name,
        }
        llm = LLM.from_target(TableTarget(table), None, speculative_config=settings)
        for seed in range(num_before):
            llm.generate([[0, 1, 0, 1]], SamplingParams(seed=seed, max_tokens=30, detokenize=False))
        return llm.generate([[1, 2, 1, 2, 1]], request)[0].outputs[0].token_ids

    assert run(0) == run(3)
