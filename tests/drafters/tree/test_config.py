"""Fields of trees and of looks at the noise: refused where they would have no effect; chains by their noise weight."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from draftproof.config import VERIFIERS, SpeculativeConfig
from draftproof.core import Dense, DrawnWith, Key, PointMass, Purpose, Sparse
from draftproof.drafters import make_drafter
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.sharpened import chain_power, sharpened
from draftproof.drafters.tree import (
    BestFirst,
    SampledTreeDrafter,
    Shares,
    Static,
    TopK,
    TreeDrafter,
    TunedShares,
    shares_of,
)
from draftproof.drafters.tree.scores import log_shares_of
from draftproof.drafters.tree.tuning import HORIZON, POWERS, WEIGHTS, arms_of
from draftproof.errors import ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.verify import get_verifier
from tests.drafters.models import VOCAB_SIZE, tiny_target
from tests.drafters.tree.tables import TableSource, uneven_table

TREE = {"method": "suffix", "topology": "tree"}
TARGET = SimpleNamespace(supports_trees=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topology": "bush"}, "chain, tree, auto"),
        *(({"topology": "auto", "verifier": name}, "'chain' or 'tree' with") for name in VERIFIERS if name != "keyed"),
        ({"topology": "auto", "draft_length": "fixed"}, "'chain' or 'tree' with"),
        ({"num_tree_nodes": 8}, "unset for a chain"),
        ({"max_tree_depth": 8}, "unset for a chain"),
        ({"tree_builder": "static"}, "unset for a chain"),
        ({**TREE, "num_tree_nodes": 0}, "1 to 128"),
        ({**TREE, "num_tree_nodes": 129}, "1 to 128"),
        ({**TREE, "max_tree_depth": True}, "1 to 128"),
        ({**TREE, "tree_builder": "widest"}, "best_first, top_k, static"),
        ({**TREE, "verifier": "rejection"}, "use keyed, match, or traversal"),
        ({**TREE, "verifier": "block"}, "use keyed, match, or traversal"),
        ({**TREE, "verifier": "traversal", "tree_builder": "best_first"}, "shape before it is drawn"),
        ({**TREE, "noise_weight": 3.5}, "0 to 3"),
        ({**TREE, "noise_weight": "much"}, "0 to 3"),
        ({**TREE, "sharpness": 0}, "above 0"),
        ({**TREE, "sharpness": math.nan}, "above 0"),
        ({**TREE, "verifier": "match", "noise_weight": 1.0}, "unset with other verifiers than keyed"),
        ({**TREE, "share_target_noise": False, "noise_weight": 1.0}, "share_target_noise is False"),
        ({"method": "ngram", "noise_weight": 1.0}, "nothing is drawn"),
        ({"method": "suffix", "verifier": "block", "sharpness": 2.0}, "nothing is drawn"),
        ({"method": "draft_model", "model": "x", "sharpness": 2.0}, "set noise_weight"),
    ],
)
def test_fields_without_effect_are_refused(fields, message):
    with pytest.raises(ParameterError, match=message):
        SpeculativeConfig(**fields)


@pytest.mark.parametrize("name", ["keyed", "match"])
@pytest.mark.parametrize(
    ("builder", "made"), [(None, BestFirst), ("best_first", BestFirst), ("top_k", TopK), ("static", Static)]
)
def test_builders_by_name(name, builder, made):
    config = SpeculativeConfig(**TREE, verifier=name, tree_builder=builder, num_tree_nodes=12, max_tree_depth=3)
    drafter = make_drafter(config, TARGET, None, None)
    assert isinstance(drafter, TreeDrafter) and isinstance(drafter.builder, made)
    assert drafter.builder.max_depth == 3 and config.most_drafted == 12 and drafter.method == "suffix"


@pytest.mark.parametrize("name", ["recursive", "traversal", "hybrid", "multi_round", "k_seq", "multi_path_block"])
def test_drawn_trees_have_the_siblings_of_their_verifier(name):
    drafter = make_drafter(SpeculativeConfig(**TREE, verifier=name, sharpness=1.5), TARGET, None, None)
    assert isinstance(drafter, SampledTreeDrafter) and drafter.siblings is get_verifier(name).siblings
    assert drafter.sharpness == 1.5


def test_forced_has_no_laws_to_grow_a_tree_from():
    with pytest.raises(ParameterError, match="no laws"):
        make_drafter(SpeculativeConfig(method="forced", topology="tree"), TARGET, None, None)


def test_what_is_tuned():
    def shares(**fields):
        return shares_of(SpeculativeConfig(**{**TREE, **fields}))

    def fixed(**fields):
        chosen = shares(**fields).choose(0, 1.0, looks=True)
        assert not shares(**fields).arms(0)
        return chosen.noise_weight, chosen.sharpness

    def tuned(**fields):
        policy = shares(**fields)
        first = policy.choose(0, 1.0, looks=True)
        assert policy.arms(0)[0] == first
        return policy.arms(0)

    assert len(tuned()) == len(tuned(topology="auto")) == len(WEIGHTS) * len(POWERS)
    assert tuned()[0] == Shares(0.8, 1.0)
    assert {arm.noise_weight for arm in tuned(noise_weight=0.5)} == {0.5}
    assert {arm.sharpness for arm in tuned(sharpness=2.0)} == {2.0}
    assert fixed(noise_weight=0.5, sharpness=2.0) == fixed(topology="auto", noise_weight=0.5, sharpness=2.0) == (0.5, 2)
    assert fixed(draft_length="fixed") == (1.0, 1.0)
    assert fixed(verifier="match") == (1.0, 1.0)


def test_tuning_takes_the_arm_of_the_smallest_loss_and_never_looks_without_leave():
    policy = TunedShares(arms_of(None, None))
    policy.choose(0, 1.0, looks=True)
    arms = policy.arms(0)
    best = arms.index(Shares(0.5, 0.7))
    for index in range(300):
        policy.choose(0, 1.0, looks=True)
        policy.observe(0, np.array([-1.0 - 0.5 * (arm != best) + (index % 2) for arm in range(len(arms))]))
    assert policy.choose(0, 1.0, looks=True) == Shares(0.5, 0.7)
    # A token that a drafter leaves out is as bad as MAX_LOSS, for every arm alike.
    policy.observe(0, np.full(len(arms), -np.inf))
    assert policy.choose(0, 1.0, looks=True) == Shares(0.5, 0.7)
    assert policy.choose(1, 1.0, looks=False).noise_weight == 0
    assert not any(arm.noise_weight for arm in policy.arms(1))
    assert set(policy.means()) == {"warm, looking"}
    # Kinds of requests don't mix, and what is learned is soon replaced where it no longer holds.
    assert policy.choose(2, 0.7, looks=True) == arms[0]
    for _ in range(3 * HORIZON):
        policy.observe(0, np.array([-float(arm != 4) for arm in range(len(arms))]))
    assert policy.choose(0, 1.0, looks=True) == arms[4]


@pytest.mark.parametrize("support", [None, [1, 3, 4]])
def test_the_share_of_a_token_is_the_formula(support):
    """Against (q E^-zeta)^sharpness, normalised in float64 over the whole law."""
    table = np.array([0.4, 0.3, 0.2, 0.1]) if support is None else np.array([0.5, 0.3, 0.2])
    law = Dense(table.astype(np.float32)) if support is None else Sparse(np.array(support), table.astype(np.float32))
    ids, noise = np.arange(4) if support is None else np.array(support), KeyedNoise(7)
    words = noise.field(Key(Purpose.TARGET, 9), 5)[ids].astype(np.float64)
    exponential = -np.log1p(-(words + 0.5) / 2**32)
    for arm in arms_of(None, None):
        powers = (table * exponential**-arm.noise_weight) ** arm.sharpness
        for place, token_id in enumerate(ids):
            found = log_shares_of(int(token_id), law, noise, 9, (arm,))
            assert found[0] == pytest.approx(np.log(powers[place] / powers.sum()), abs=1e-4)
    assert np.all(log_shares_of(0 if support else 4, law, noise, 9, arms_of(None, None)) == -np.inf)
    assert list(log_shares_of(2, PointMass(2), noise, 9, arms_of(1.0, 1.0))) == [0.0]
    assert list(log_shares_of(1, PointMass(2), noise, 9, arms_of(1.0, 1.0))) == [-np.inf]


def test_a_drafter_learns_which_noise_weight_its_target_follows():
    """The emitted tokens are those of the largest q E^-1: every other arm loses, though the first draft took arm 0."""
    drafter = TreeDrafter(
        TableSource(uneven_table(8, 1)), BestFirst(2), TunedShares(tuple(reversed(arms_of(None, None))))
    )
    row = resolve(SamplingParams(temperature=1.0), None, 8)
    for index in range(200):
        context = [index % 8, index % 7]
        ask = DraftRequest(0, context, 4, KeyedNoise(index), True, row, History(context))
        drafter.propose([ask])
        law = TableSource(uneven_table(8, 1)).law(tuple(context))
        emitted = law.draw(KeyedNoise(index), Key(Purpose.TARGET, len(context)))
        decisions = [SimpleNamespace(position=len(context))]
        drafter.observe(0, context, SimpleNamespace(path=(), token_ids=(emitted,), decisions=decisions))
    assert drafter.shares.choose(0, 1.0, looks=True).noise_weight == 1.0


@pytest.mark.parametrize(
    ("fields", "verifier", "power"),
    [
        ({}, "keyed", 1.0),
        ({"noise_weight": 0.5}, "keyed", 2.0),
        ({"noise_weight": 0.0}, "keyed", math.inf),
        ({"noise_weight": 0.5}, "greedy", 2.0),
        ({"share_target_noise": False}, "keyed", 1.0),
        ({"verifier": "block", "sharpness": 2.0}, "block", 2.0),
        ({"verifier": "match"}, "match", 1.0),
    ],
)
def test_the_power_of_a_chains_laws(fields, verifier, power):
    config = SpeculativeConfig(method="draft_model", model="x", **fields)
    assert chain_power(config, get_verifier(verifier)) == power


@pytest.mark.parametrize("noise_weight", [0.0, 0.4, 1.0, 2.5])
def test_a_chain_is_the_argmax_of_log_q_and_the_weighted_noise(noise_weight):
    """Against log q + zeta * G in float64, token by token, from the drafter's own laws."""
    chain = SamplerChain(dtype="float64")
    drafter = DraftModelDrafter(tiny_target(3), chain, target_tokenizer=None, draft_tokenizer=None)
    context, noise = [3, 1, 4, 1, 5], KeyedNoise(9)
    row = resolve(SamplingParams(temperature=0.8), None, VOCAB_SIZE)
    config = SpeculativeConfig(method="draft_model", model="x", noise_weight=noise_weight)

    def propose(power):
        request = DraftRequest(0, context, 12, noise, True, row, History(context), law_power=power)
        return drafter.propose([request])[0]

    draft = propose(chain_power(config, get_verifier("keyed")))
    assert len(draft) == 12
    assert draft.drawn_with is (DrawnWith.TARGET_FIELD if noise_weight else DrawnWith.NOTHING)
    for node, token_id in enumerate(draft.token_ids):
        logits = drafter.model.model(input_ids=__import__("torch").tensor([[*context, *draft.token_ids[:node]]])).logits
        log_law = np.log(chain.laws(logits[0, -1:].detach(), row, [History(context)])[0].at(None, VOCAB_SIZE))
        words = noise.field(Key(Purpose.TARGET, len(context) + node), VOCAB_SIZE)
        scores = log_law + noise_weight * -np.log(-np.log1p(-(words + 0.5) / 2**32))
        second, best = np.argsort(scores)[-2:]
        assert token_id == best or scores[best] - scores[second] < 1e-4


def test_sharpened_laws():
    law = Dense(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    assert sharpened(law, 1.0) is law and sharpened(law, math.inf) == PointMass(0)
    assert sharpened(PointMass(4), 2.0) == PointMass(4)
    expected = np.array([0.25, 0.09, 0.04]) / 0.38
    assert np.allclose(sharpened(law, 2.0).at(None, 3), expected)
    sparse = sharpened(Sparse(np.array([2, 7]), np.array([0.8, 0.2])), 0.5)
    assert np.allclose(sparse.at(np.array([2, 7]), 2), np.sqrt([0.8, 0.2]) / np.sqrt([0.8, 0.2]).sum())
    tiny = sharpened(Dense(np.array([1e-30, 1e-38], dtype=np.float32)), 4.0)
    assert tiny.at(None, 2).sum() == pytest.approx(1.0)
    with pytest.raises(ParameterError, match="power"):
        sharpened(law, 0.0)
