"""Laws for trees: a draft model's are those of its chains, look-ups count what followed, blocks answer by depth."""

from dataclasses import replace

import numpy as np
import pytest

from draftproof.core import ROOT, Dense, PointMass, Siblings, Sparse, Without
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.drafters.tree import BestFirst, SampledTreeDrafter, Shares, TreeDrafter, source_of
from draftproof.drafters.tree.factorised_source import FactorisedSource
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.lookup_sources import NgramSource, SuffixSource, law_of_counts
from draftproof.drafters.tree.model_source import ModelSource
from draftproof.drafters.tree.static import paths_for, shape_for
from draftproof.errors import ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.verify import get_verifier
from tests.drafters.models import VOCAB_SIZE, tiny_target
from tests.drafters.tree.tables import TableSource, uneven_table

CHAIN = SamplerChain(dtype="float64")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
REPEATING = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 5, 1, 2]
LOGIT_ERROR = 2e-5  # as in test_draft_model.py


def request_of(context_ids, num_tokens, *, seed=1, slot=0, share=True, vocab_size=VOCAB_SIZE, **params):
    row = resolve(SamplingParams(**params), None, vocab_size)
    return DraftRequest(
        slot, context_ids, num_tokens, KeyedNoise(seed), share, row, History(context_ids[:4], context_ids[4:])
    )


def model_drafter(seed=0, num_slots=1, **options):
    return DraftModelDrafter(
        tiny_target(seed, num_slots=num_slots, **options), CHAIN, target_tokenizer=None, draft_tokenizer=None
    )


def chain_law(model, context_ids, row_params, num_prompt=4):
    """The drafter's law after a context, by a forward of its own."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([context_ids]), use_cache=False).logits[0, -1:]
    return CHAIN.laws(logits, row_params, [History(context_ids[:num_prompt], context_ids[num_prompt:])])[0]


@pytest.mark.parametrize(
    "setting", [{}, {"temperature": 0.7, "top_k": 9}, {"repetition_penalty": 1.4, "presence_penalty": 0.5}]
)
def test_a_draft_models_laws_are_those_of_its_chains(setting):
    """Every node's law in a tree equals that of a fresh forward over its path, penalties by path included."""
    drafter = model_drafter()
    source, request = ModelSource(drafter), request_of(PROMPT, 30, **setting)
    grower = TreeDrafter(source, BestFirst(4, num_per_round=3), Shares(1.0))
    seen = {}
    keep = Growing.add

    def spy(tree, parent, token_ids, log_shares, law):
        seen[tuple(int(tree.token_ids[i]) for i in tree.path_to(parent))] = law
        keep(tree, parent, token_ids, log_shares, law)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Growing, "add", spy)
        grower.propose([request])
    assert len(seen) > 8 and max(map(len, seen)) >= 2
    for path, law in seen.items():
        expected = chain_law(drafter.model.model, [*PROMPT, *path], request.row_params)
        assert np.abs(law.at(None, VOCAB_SIZE) - expected.at(None, VOCAB_SIZE)).max() < 50 * LOGIT_ERROR
    assert drafter.model.length(0) == len(PROMPT) - 1 == len(drafter.cached_ids[0])


def test_slots_hold_the_context_alone_between_calls_and_follow_it():
    """Over ten passes in which 0 to 3 tokens are committed: the cache stays the context without its newest token."""
    drafter = model_drafter(num_slots=2)
    grower = TreeDrafter(ModelSource(drafter), BestFirst(3, num_per_round=2))
    contexts = [list(PROMPT), list(PROMPT[:3])]
    for step in range(10):
        drafts = grower.propose([request_of(ids, 6, slot=slot, seed=slot) for slot, ids in enumerate(contexts)])
        for slot, draft in enumerate(drafts):
            assert len(draft) == 6 and draft.start == len(contexts[slot])
            assert drafter.model.length(slot) == len(contexts[slot]) - 1
            contexts[slot] += [*draft.token_ids[: (step + slot) % 4], step]
    fresh = TreeDrafter(ModelSource(model_drafter(num_slots=2)), BestFirst(3, num_per_round=2))
    request = [request_of(contexts[0], 6, slot=0, seed=0)]
    assert grower.propose(request) == fresh.propose(request)


def test_a_slot_without_room_gets_a_smaller_tree():
    drafter = model_drafter()
    room_for = drafter.model.max_model_len - 3
    context = [token % VOCAB_SIZE for token in range(room_for)]
    [draft] = TreeDrafter(ModelSource(drafter), BestFirst(8, num_per_round=8)).propose([request_of(context, 32)])
    assert 0 < len(draft) and drafter.model.length(0) == room_for - 1
    full = [token % VOCAB_SIZE for token in range(drafter.model.max_model_len + 1)]
    assert len(TreeDrafter(ModelSource(drafter), BestFirst(8)).propose([request_of(full, 8)])[0]) == 0


def test_suffix_counts_what_followed():
    """After (1, 2): twice 3 and once 4. After (1, 2, 3): 9 once, 5 once."""
    source = SuffixSource(SuffixDrafter(min_match_length=1))
    request = request_of(REPEATING, 10, vocab_size=16)
    [law] = source.root_laws([request])
    assert law.at(None, 10)[[3, 4]].tolist() == [2 / 3, 1 / 3]
    tree = Growing(request)
    tree.add(ROOT, np.array([3, 4]), np.zeros(2), law)
    tree.expand([0, 1])
    ((after_three, after_four),) = source.laws_after([tree], [2])
    assert isinstance(after_three, Sparse) and after_three.at(None, 10)[[5, 9]].tolist() == [0.5, 0.5]
    assert after_four == PointMass(9)


def test_ngram_counts_occurrences_that_went_the_same_way():
    source = NgramSource(NgramDrafter(1, 3))
    request = request_of(REPEATING, 10, vocab_size=16)
    [law] = source.root_laws([request])
    assert law.at(None, 10)[[3, 4]].tolist() == [2 / 3, 1 / 3]
    tree = Growing(request)
    tree.add(ROOT, np.array([3, 4]), np.zeros(2), law)
    tree.expand([0, 1])
    ((after_three, after_four),) = source.laws_after([tree], [2])
    assert after_three.at(None, 10)[[5, 9]].tolist() == [0.5, 0.5] and after_four == PointMass(9)


@pytest.mark.parametrize("drafter", [SuffixDrafter(min_match_length=1), NgramDrafter(1, 3)], ids=["suffix", "ngram"])
def test_look_ups_make_several_continuations(drafter):
    [draft] = TreeDrafter(source_of(drafter), BestFirst(4, 32)).propose([request_of(REPEATING, 12, vocab_size=16)])
    assert {draft.token_ids[child] for child in draft.children_of(ROOT)} == {3, 4}
    assert max(draft.depths) == 3
    [none] = TreeDrafter(source_of(drafter), BestFirst(4, 32)).propose([request_of([7, 8], 12, slot=1, vocab_size=16)])
    assert len(none) == 0


def test_counts():
    assert law_of_counts({}) is None and law_of_counts({4: 9}) == PointMass(4)


class Block:
    """A drafter whose slots don't see each other."""

    method = "dflash"
    proposes_without_confidence = True

    def __init__(self):
        self.num_calls = 0
        rows = np.random.Generator(np.random.PCG64(2)).dirichlet([0.5] * 12, size=3)
        self.laws = [Dense(row.astype(np.float32)) for row in rows]

    def depth_laws(self, requests):
        self.num_calls += 1
        return [self.laws for _ in requests]


def test_a_blocks_tree_is_the_best_product_of_its_marginals():
    block = Block()
    source = source_of(block)
    assert isinstance(source, FactorisedSource)
    [draft] = TreeDrafter(source, BestFirst(8, 32), Shares(0.0)).propose([request_of(PROMPT, 20, share=False)])
    assert block.num_calls == 1 and max(draft.depths) <= 2
    probs = [law.probs for law in block.laws]
    weights = {(a,): probs[0][a] for a in range(12)}
    weights |= {(a, b): probs[0][a] * probs[1][b] for a in range(12) for b in range(12)}
    weights |= {(*ab, c): weights[ab] * probs[2][c] for ab in list(weights) if len(ab) == 2 for c in range(12)}
    best = sorted(weights, key=lambda path: -weights[path])[:20]
    assert {tuple(draft.token_ids[i] for i in draft.path_to(node)) for node in range(20)} == set(best)


def test_a_drafter_without_laws_is_refused():
    class Other:
        method = "other"

    with pytest.raises(ParameterError, match="no laws to grow a tree from"):
        source_of(Other())


TREE_RULES = ("recursive", "traversal", "hybrid", "multi_round", "k_seq", "multi_path_block")


@pytest.mark.parametrize("name", TREE_RULES)
def test_drawn_trees_are_what_their_rules_take(name):
    verifier = get_verifier(name)
    shape = shape_for if verifier.supports_branches_below else paths_for
    drafter = SampledTreeDrafter(TableSource(uneven_table(6, 1)), verifier.siblings, max_depth=3, shape=shape)
    for seed in range(30):
        [draft] = drafter.propose([request_of(PROMPT, 9, seed=seed, vocab_size=6)])
        assert not draft.is_chain and max(draft.depths) <= 2 and len(draft) == 9
        rows = [Dense(np.full(6, 1 / 6))] * 10
        verifier.verify(draft, rows, KeyedNoise(seed), telemetry=True)


def test_drawn_trees_have_the_shape_that_was_fixed():
    drafter = SampledTreeDrafter(TableSource(uneven_table(9, 1)), Siblings.WITHOUT_REPLACEMENT, max_depth=4)
    shape = shape_for(14, 4)
    counts = sorted(shape.count(node) for node in range(ROOT, 14))
    for seed in range(5):
        [draft] = drafter.propose([request_of(PROMPT, 14, seed=seed, vocab_size=9)])
        assert sorted(len(draft.children_of(node)) for node in range(ROOT, 14)) == counts


def test_equal_paths_share_one_law_object():
    """Two independent draws are often equal in a vocabulary of 2: what follows them is one law, asked for once."""
    source = TableSource(uneven_table(2, 3))
    drafter = SampledTreeDrafter(source, Siblings.INDEPENDENT, max_depth=3, shape=paths_for)
    for seed in range(20):
        [draft] = drafter.propose([request_of(PROMPT, 6, seed=seed, vocab_size=2)])
        by_path = {}
        for node in range(len(draft)):
            path = tuple(draft.token_ids[i] for i in draft.path_to(node))[:-1]
            assert by_path.setdefault(path, draft.laws[node]) is draft.laws[node]


def test_paths_below_equal_tokens_stand_where_the_source_has_been():
    """Of two equal first tokens one has a law computed after it; the source finds what follows both below that."""

    class Watched(ModelSource):
        def laws_after(self, trees, num_new):
            for tree in trees:
                known = {ROOT, *tree.trunk}
                assert all(int(tree.parents[node]) in known for node in tree.trunk)
            return super().laws_after(trees, num_new)

    source, num_equal = Watched(model_drafter()), 0
    drafter = SampledTreeDrafter(source, Siblings.INDEPENDENT, max_depth=4, shape=paths_for)
    for seed in range(40):
        [draft] = drafter.propose([request_of(PROMPT, 8, seed=seed, top_k=2)])
        num_equal += draft.token_ids[0] == draft.token_ids[1] and draft.token_ids[2:4] != draft.token_ids[3:1:-1]
        assert draft.parents == paths_for(8, 4)
    assert num_equal > 3


def test_drawn_laws_are_sharpened_before_they_are_drawn_from():
    table = uneven_table(6, 1)
    drafter = SampledTreeDrafter(TableSource(table), Siblings.WITHOUT_REPLACEMENT, max_depth=1, sharpness=2.0)
    [draft] = drafter.propose([request_of(PROMPT, 3, vocab_size=6)])
    squares = np.array([float(prob) ** 2 for prob in table.probs(tuple(PROMPT))])
    assert np.allclose(draft.laws[0].at(None, 6), squares / squares.sum(), atol=1e-6)
    assert isinstance(draft.laws[1], Without) and draft.laws[1].base is draft.laws[0]


def test_a_point_mass_has_one_child_in_any_tree():
    """At temperature 0 a drawn tree is a chain: its rule tests what was drawn, and nothing else was."""
    drafter = SampledTreeDrafter(ModelSource(model_drafter()), Siblings.WITHOUT_REPLACEMENT, max_depth=3)
    [draft] = drafter.propose([request_of(PROMPT, 9, temperature=0.0)])
    assert draft.is_chain and len(draft) == 3


def test_requests_of_a_batch_do_not_meet():
    drafter = model_drafter(num_slots=3)
    grower = TreeDrafter(ModelSource(drafter), BestFirst(3, num_per_round=4))
    requests = [request_of(PROMPT[: 4 + slot], 8, slot=slot, seed=slot) for slot in range(3)]
    together = grower.propose(requests)
    for slot, request in enumerate(requests):
        alone = TreeDrafter(ModelSource(model_drafter()), BestFirst(3, num_per_round=4))
        assert alone.propose([replace(request, slot=0)])[0].token_ids == together[slot].token_ids
