"""Which tree a builder makes: against brute force over all paths, bounds, and siblings that differ."""

import math

import numpy as np
import pytest

from draftproof.core import ROOT, Draft, DrawnWith, Key, PointMass, Purpose
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree import BestFirst, Shares, Static, TopK, TreeDrafter
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.scores import NoiseScores, largest
from draftproof.drafters.tree.static import paths_for, shape_for
from draftproof.errors import ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, resolve
from draftproof.verify import get_verifier
from tests.drafters.tree.tables import TableSource, brute_force, uneven_table

VOCAB_SIZE, CONTEXT = 6, [0, 3, 1]
TABLE = uneven_table(VOCAB_SIZE, 4)
BUILDERS = {
    "best_first": BestFirst(4, num_per_round=3),
    "best_first, bounded": BestFirst(4, num_per_round=2, num_children=3, max_rounds=3),
    "top_k": TopK(4, num_children=3),
    "static": Static(4),
}


def request(num_tokens, *, temperature=1.0, share=True, seed=5, slot=0, vocab_size=VOCAB_SIZE):
    params = resolve(SamplingParams(temperature=temperature), None, vocab_size)
    return DraftRequest(slot, CONTEXT, num_tokens, KeyedNoise(seed), share, params, History(CONTEXT))


def propose(builder, num_tokens, shares=Shares(), **options):  # noqa: B008
    [draft] = TreeDrafter(TableSource(TABLE), builder, shares).propose([request(num_tokens, **options)])
    return draft


def shares_at(path, *, noise_weight, sharpness, seed=5):
    """softmax(sharpness * (log q + zeta * G)) over the vocabulary, in float64."""
    probs = np.array([float(prob) for prob in TABLE.probs((*CONTEXT, *path))])
    words = KeyedNoise(seed).field(Key(Purpose.TARGET, len(CONTEXT) + len(path)), VOCAB_SIZE)
    gumbel = -np.log(-np.log1p(-(words + 0.5) / 2**32))
    scores = np.exp(sharpness * (np.log(probs) + noise_weight * gumbel))
    return scores / scores.sum()


def paths(draft):
    return {tuple(draft.token_ids[i] for i in draft.path_to(node)) for node in range(len(draft))}


@pytest.mark.parametrize("num_tokens", [1, 5, 12, 40])
@pytest.mark.parametrize("sharpness", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("noise_weight", [0.0, 0.5, 1.0, 1.4])
def test_best_first_is_the_tree_of_the_largest_weights(noise_weight, sharpness, num_tokens):
    shares = Shares(noise_weight, sharpness)
    draft = propose(BestFirst(4, num_per_round=3), num_tokens, shares)
    best = brute_force(
        TABLE, tuple(CONTEXT), 4, lambda path: shares_at(path, noise_weight=noise_weight, sharpness=sharpness)
    )
    # No two weights are near enough for float32 to swap them at the edge.
    assert best[num_tokens - 1][0] - best[num_tokens][0] > 1e-5
    assert paths(draft) == {path for _, path in best[:num_tokens]}


def test_top_k_is_a_beam():
    draft = propose(TopK(3, num_children=3), 9, Shares(0.0))
    level = [((), 0.0)]
    expected = set()
    for _ in range(3):
        grown = [
            ((*path, token), weight + math.log(share))
            for path, weight in level
            for token, share in enumerate(shares_at(path, noise_weight=0.0, sharpness=1.0))
        ]
        level = sorted(grown, key=lambda item: -item[1])[:3]
        expected |= {path for path, _ in level}
    assert paths(draft) == expected


def test_static_fills_its_shape_by_rank():
    draft = propose(Static(3), 10, Shares(0.0))
    shape = shape_for(10, 3)
    assert len(draft) == 10
    for parent in range(ROOT, 10):
        path = () if parent == ROOT else tuple(draft.token_ids[i] for i in draft.path_to(parent))
        if len(path) < 3:
            ranked = np.argsort(-shares_at(path, noise_weight=0.0, sharpness=1.0), kind="stable")
            children = [draft.token_ids[child] for child in draft.children_of(parent)]
            assert children == ranked[: len(children)].tolist()
    assert sorted(len(draft.children_of(node)) for node in range(ROOT, 10)) == sorted(
        shape.count(node) for node in range(ROOT, 10)
    )


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 8, 31, 64])
@pytest.mark.parametrize("name", BUILDERS)
def test_bounds_and_siblings_that_differ(name, num_tokens):
    """T20a, and: no more nodes than asked for, no path longer than allowed, parents before children."""
    for noise_weight in (0.0, 1.0):
        draft = propose(BUILDERS[name], num_tokens, Shares(noise_weight))
        assert 0 < len(draft) <= num_tokens and max(draft.depths) < 4
        assert len({*zip(draft.parents, draft.token_ids, strict=True)}) == len(draft)
        assert all(parent < node for node, parent in enumerate(draft.parents))
        assert draft.drawn_with is (DrawnWith.TARGET_FIELD if noise_weight else DrawnWith.NOTHING)


def test_the_noise_is_not_looked_at_without_leave():
    """For verifiers of fresh noise, and at temperature 0, where the request's own law is a point mass."""
    looking, other = propose(BUILDERS["best_first"], 8), propose(BUILDERS["best_first"], 8, Shares(0.0))
    assert paths(looking) != paths(other)
    assert propose(BUILDERS["best_first"], 8, share=False) == other
    assert paths(propose(BUILDERS["best_first"], 8, temperature=0.0)) == paths(other)
    assert propose(BUILDERS["best_first"], 8, share=False).drawn_with is DrawnWith.NOTHING


def test_the_targets_own_law_and_noise_give_the_targets_own_path():
    """zeta = 1 and q = p: the best child is the token that `keyed` draws, at every depth."""
    for seed in range(20):
        draft = propose(BestFirst(4, num_per_round=3), 8, Shares(1.0), seed=seed)
        source = TableSource(TABLE)
        laws = [
            source.law((*CONTEXT, *(draft.token_ids[i] for i in draft.path_to(node))))
            for node in range(ROOT, len(draft))
        ]
        verdict = get_verifier("keyed").verify(draft, laws, KeyedNoise(seed))
        assert verdict.num_accepted >= 1
        assert verdict.path[0] in draft.children_of(ROOT)


def test_an_empty_budget_is_an_empty_draft_and_asks_for_nothing():
    source = TableSource(TABLE)
    [draft] = TreeDrafter(source, BUILDERS["best_first"]).propose([request(0)])
    assert draft == Draft.empty(len(CONTEXT)) and source.num_laws == 0


def test_rounds_of_many_requests_are_shared():
    source = TableSource(TABLE)
    drafter = TreeDrafter(source, BestFirst(4, num_per_round=3), Shares(0.0))
    alone = [
        TreeDrafter(TableSource(TABLE), BestFirst(4, num_per_round=3), Shares(0.0)).propose([request(n, slot=i)])[0]
        for i, n in enumerate((8, 0, 3))
    ]
    assert drafter.propose([request(8, slot=0), request(0, slot=1), request(3, slot=2)]) == alone
    assert source.num_rounds <= 1 + 8


@pytest.mark.parametrize("noise_weight", [-0.1, 3.1, math.nan])
def test_noise_weights_out_of_range(noise_weight):
    with pytest.raises(ParameterError, match="noise_weight"):
        Shares(noise_weight)


def test_the_largest_of_many_scores():
    source = np.random.Generator(np.random.PCG64(3))
    for size in (5, 1000, 4097, 50_000):
        for num_wanted in (1, 4, 16):
            scores = source.random(size, dtype=np.float32)
            scores[source.integers(0, size, size // 3)] = 0.5
            assert np.array_equal(largest(scores, num_wanted), np.argsort(-scores, kind="stable")[:num_wanted])


@pytest.mark.parametrize("noise_weight", [0.3, 0.5, 1.0, 3.0])
def test_shares_stay_finite_at_the_fields_ends(noise_weight):
    """32-bit words 0 and 2^32 - 1: E rounds to its smallest, and in float32 to infinity."""

    class Ends(KeyedNoise):
        def field(self, key, vocab_size):
            return np.array([0, 2**32 - 1] * (vocab_size // 2), dtype=np.uint32)

    scores = NoiseScores(Ends(1), noise_weight=noise_weight, num_children=6)
    token_ids, shares = scores.ranked(TableSource(TABLE).law(tuple(CONTEXT)), 3)
    assert np.isfinite(shares).all() and (shares <= 0).all() and set(token_ids[:3]) == {0, 2, 4}


def test_shapes():
    assert shape_for(1, 5) == (ROOT,) and shape_for(0, 5) == ()
    for num_nodes in (2, 9, 32, 64):
        shape = shape_for(num_nodes, 6)
        assert len(shape) == num_nodes and all(parent < node for node, parent in enumerate(shape))
        assert shape == tuple(sorted(shape)) and shape_for(num_nodes, 6) is shape
    assert paths_for(8, 4) == (-1, -1, 0, 1, 2, 3, 4, 5)
    assert paths_for(9, 3) == (-1, -1, -1, 0, 1, 2, 3, 4, 5)
    assert paths_for(1, 4) == (-1,) and paths_for(2, 1) == (-1, -1)


@pytest.mark.parametrize(
    ("most", "kept"), [(1, [0, 2, 5]), (2, [0, 1, 2, 4, 5]), (3, [0, 1, 2, 3, 4, 5]), (9, [0, 1, 2, 3, 4, 5])]
)
def test_a_tree_is_cut_to_so_many_branches(most, kept):
    """Two children of the context, 0 and 1; 2 and 3 after 0, 4 after 1, 5 after 2: the first of each come first."""
    tree = Growing(request(8))
    tree.add(ROOT, np.array([1, 2]), np.log([0.6, 0.3]), PointMass(0))
    tree.add(0, np.array([1, 2]), np.log([0.5, 0.2]), PointMass(0))
    tree.add(1, np.array([3]), np.log([0.3]), PointMass(0))
    tree.add(2, np.array([4]), np.log([0.1]), PointMass(0))
    assert tree.with_branches(np.arange(6), most).tolist() == kept
