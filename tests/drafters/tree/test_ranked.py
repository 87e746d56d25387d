"""Children ranked in one call: those that NumPy finds, with the shares that it gives them."""

import numpy as np
import pytest

from draftproof.core import Dense, Sparse
from draftproof.drafters.tree import ranked, scores
from draftproof.drafters.tree.scores import NoiseScores
from draftproof.noise import KeyedNoise

needs_numba = pytest.mark.skipif(ranked.ranking() is None, reason="needs numba")
SIZE = 5000


def laws():
    rng = np.random.default_rng(3)
    probs = (rng.random(SIZE).astype(np.float32) ** 9).astype(np.float32)
    probs[rng.integers(0, SIZE, 700)] = 0.0
    probs /= probs.sum()
    few = np.zeros(SIZE, dtype=np.float32)
    few[[7, 9, 4000]] = [0.2, 0.5, 0.3]
    ids = np.sort(rng.choice(3 * SIZE, SIZE, replace=False))
    ties = np.full(SIZE, 1 / SIZE, dtype=np.float32)
    return {"dense": Dense(probs), "sparse": Sparse(ids, probs), "few": Dense(few), "ties": Dense(ties)}


def ranked_by(law, weight: float, sharpness: float, num_children: int):
    found = NoiseScores(KeyedNoise(5, 1), noise_weight=weight, num_children=num_children, sharpness=sharpness)
    return found.ranked(law, 11)


@needs_numba
@pytest.mark.parametrize("kind", ["dense", "sparse", "few", "ties"])
@pytest.mark.parametrize("weight", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("sharpness", [1.0, 0.7])
@pytest.mark.parametrize("num_children", [1, 16])
def test_children_and_shares_are_numpys(kind, weight, sharpness, num_children, monkeypatch) -> None:
    law = laws()[kind]
    ids, shares = ranked_by(law, weight, sharpness, num_children)
    monkeypatch.setattr(scores, "ranking", lambda: None)
    wanted_ids, wanted_shares = ranked_by(law, weight, sharpness, num_children)
    assert ids.tolist() == wanted_ids.tolist() and len(ids) == min(num_children, 3 if kind == "few" else 16)
    assert np.allclose(shares, wanted_shares, atol=3e-5)


@needs_numba
def test_a_better_token_in_a_block_of_poor_ones_is_found() -> None:
    """Blocks are skipped by their largest value: one that is no better than the worst kept one, and no other."""
    probs = np.full(SIZE, 1e-6, dtype=np.float32)
    for place in (10, 70, 4999, 130):
        probs[place] = 0.1 + place / SIZE / 10
    ids, _ = ranked_by(Dense(probs / probs.sum()), 0.0, 1.0, 4)
    assert ids.tolist() == [4999, 130, 70, 10]


@needs_numba
def test_a_ranking_that_skips_too_much_shows(monkeypatch) -> None:
    """The mutant takes a block's first value for its largest."""
    from draftproof.drafters.tree import ranked_code

    names = ranked_code.best_of.py_func.__globals__
    monkeypatch.setitem(names, "largest_in", lambda values: values[0])
    values, best, order = np.full(256, 1e-6), np.zeros(2), np.zeros(2, dtype=np.int64)
    values[[5, 100, 200]] = 0.2, 0.3, 0.4
    ranked_code.best_of.py_func(values, 256, best, order)
    assert order.tolist() != [200, 100]
    monkeypatch.undo()
    assert ranked_code.best_of(values, 256, best, order) == 2 and order.tolist() == [200, 100]


@needs_numba
def test_where_numba_is_missing_or_refuses_numpy_ranks(monkeypatch) -> None:
    from draftproof.drafters.tree import ranked_code

    def refuses(*_):
        raise TypeError("no such signature")

    with monkeypatch.context() as patch:
        patch.setattr(ranked_code, "rank", refuses)
        with pytest.warns(RuntimeWarning, match="ranked by NumPy, since numba refuses: no such signature"):
            assert ranked.ranking.__wrapped__() is None
    monkeypatch.setitem(__import__("sys").modules, "draftproof.drafters.tree.ranked_code", None)
    assert ranked.ranking.__wrapped__() is None
