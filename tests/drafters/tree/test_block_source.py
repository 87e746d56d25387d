"""A learned drafter's tree has the laws of its chains, after every path; a block's from one pass of the backbone."""

from dataclasses import replace

import numpy as np
import pytest

from draftproof.core import ROOT
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned import block_source
from draftproof.drafters.learned.block_source import BlockSource
from draftproof.drafters.learned.chain_source import ChainSource
from draftproof.drafters.learned.load import load_block_drafter, load_chain_drafter
from draftproof.drafters.learned.vocab import VocabMap
from draftproof.drafters.tree import BestFirst, Shares, TreeDrafter, source_of
from draftproof.drafters.tree.factorised_source import FactorisedSource
from draftproof.drafters.tree.growing import Growing
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.targets.base import ScoreRequest
from tests.drafters.learned.tiny import VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.threads import one_thread

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


def made(method, folder, **changes):
    """(drafter, request): the target has read the prompt."""
    target = tiny_target(num_slots=1, invariant=False)
    path = write_drafter(method, folder, **changes)
    load = load_chain_drafter if method in ("eagle3", "mtp") else load_block_drafter
    drafter = load(path, target, SamplerChain(dtype="float64"), method=config_method(method))
    target.score([ScoreRequest(0, tuple(PROMPT[:-1]))])
    row = resolve(SamplingParams(presence_penalty=0.5, repetition_penalty=1.2), None, VOCAB_SIZE)
    return drafter, DraftRequest(0, PROMPT, 6, KeyedNoise(1), False, row, History(PROMPT), law_power=0.5)


@pytest.mark.parametrize("method", ["dspark", "dflash 2", "eagle3", "mtp"])
def test_laws_along_a_path_are_those_of_a_chain(tmp_path, method):
    """law_power .5: a chain draws from the square root of each law, which is compared with the tree's."""
    drafter, request = made(method, tmp_path)
    [chain] = drafter.propose([request])
    assert len(chain) == 6
    source = source_of(drafter)
    assert isinstance(source, ChainSource if method in ("eagle3", "mtp") else BlockSource)
    tree = Growing(request)
    [law] = source.root_laws([request])
    for node, token_id in enumerate(chain.token_ids):
        expected = np.sqrt(law.at(None, VOCAB_SIZE).astype(float))
        assert np.allclose(chain.laws[node].at(None, VOCAB_SIZE), expected / expected.sum(), atol=1e-6)
        parent = node - 1
        # A sibling beside each node: the path goes on from the second candidate.
        other = (token_id + 1) % VOCAB_SIZE
        tree.add(ROOT if parent < 0 else 2 * parent + 1, np.array([other, token_id]), np.zeros(2), law)
        if node + 1 < len(chain):
            tree.expand([2 * node, 2 * node + 1])
            [(beside, law)] = source.laws_after([tree], [2])
            assert not np.allclose(beside.at(None, VOCAB_SIZE), law.at(None, VOCAB_SIZE), atol=1e-6)


def test_plain_laws_of_a_reduced_vocabulary_are_never_expanded(tmp_path, monkeypatch):
    """eagle3's chains and trees, of requests whose law is blind to ids."""
    drafter, request = made("eagle3", tmp_path)
    request = replace(request, row_params=resolve(SamplingParams(top_p=0.9), None, VOCAB_SIZE))
    source = source_of(drafter)
    [expected] = drafter.propose([request])
    monkeypatch.setattr(VocabMap, "expand", None)
    [chain] = drafter.propose([request])
    assert chain.token_ids == expected.token_ids and len(chain) == 6
    [draft] = TreeDrafter(source, BestFirst(8, 32), Shares(0.0)).propose([request])
    assert len(draft) == 6
    assert set(draft.token_ids) <= set(drafter.ends.vocab.ascending_ids.tolist())


@pytest.mark.parametrize("method", ["dflash", "dspark", "dflash 2"])
def test_a_tree_takes_one_pass_of_the_backbone(tmp_path, method, monkeypatch):
    drafter, request = made(method, tmp_path)
    source = source_of(drafter)
    assert isinstance(source, FactorisedSource if method == "dflash" else BlockSource)
    calls = []
    run = drafter.block_hidden
    monkeypatch.setattr(drafter, "block_hidden", lambda *given: calls.append(1) or run(*given))
    [draft] = TreeDrafter(source, BestFirst(8, 32), Shares(0.0)).propose([request])
    assert len(calls) == 1 and len(draft) == 6 and not draft.is_chain


def test_a_request_that_asks_what_is_worth_it_gets_as_many_slots_as_its_drafts_go_deep(tmp_path, monkeypatch):
    """And one more; whoever doesn't ask gets as many as tokens are drafted."""
    drafter, request = made("dspark", tmp_path)
    grows, widths = [False], []

    class Told:
        is_probe = False

        def num_worth(self, survival):
            return len(survival)

        def least_survivals(self, num):
            return np.full(num, 1e-300)

        def values(self, survival):
            return survival.sum(axis=-1)

        def num_expanded(self, gains):
            return len(gains) if grows[0] else 0

        def observe_round(self, num_nodes, seconds):
            pass

    block_hidden = drafter.block_hidden

    def recorded(requests, given=None):
        widths.append(given[0] - drafter.layout.first_slot)
        return block_hidden(requests, given)

    monkeypatch.setattr(drafter, "block_hidden", recorded)
    monkeypatch.setattr(block_source, "growing", lambda: None)
    trees = TreeDrafter(source_of(drafter), BestFirst(8, 2, num_children=1), Shares(0.0))
    asking = replace(request, anticipating=Told())
    for _ in range(40):
        trees.propose([asking])
    most = min(6, drafter.layout.num_drafts)
    assert widths[0] == most and sorted(widths, reverse=True) == widths and widths[-1] == 2
    trees.propose([request])
    assert widths[-1] == most
    grows[0] = True
    trees._worth.clear()
    for _ in range(6):
        trees.propose([asking])
    assert widths[-1] == most
    trees.release(0)
    assert not trees.source._reaches and not trees._worth


def test_a_probe_is_not_grown(tmp_path):
    drafter, request = made("dspark", tmp_path)

    class Probe:
        is_probe = True

        def num_worth(self, survival):
            return len(survival)

    source = source_of(drafter)
    source.laws_after = None
    [draft] = TreeDrafter(source, BestFirst(8, 2), Shares(0.0)).propose([replace(request, anticipating=Probe())])
    assert len(draft) > 1 and set(draft.parents) == {ROOT}
