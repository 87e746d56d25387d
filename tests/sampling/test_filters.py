"""Filters: the fast paths for whole vocabularies against a full sort, monotonicity, and ties by id."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from draftproof.sampling import TopKTies, TopPTies, min_p, top_k, top_p
from tests.sampling.rows import law_of

SIZES = st.sampled_from([1, 2, 7, 64, 2047, 2049, 5000, 20011])


def random_logits(size: int, seed: int, kind: str) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if kind == "peaked":
        return (-1.6 * np.log(generator.permutation(size) + 1.0)).astype(np.float32)
    if kind == "ties":
        return generator.integers(-3, 4, size).astype(np.float32)
    return (generator.standard_normal(size) * {"flat": 0.01, "normal": 3.0}[kind]).astype(np.float32)


KINDS = st.sampled_from(["peaked", "ties", "flat", "normal"])
SEEDS = st.integers(0, 2**32 - 1)


@given(
    size=SIZES, seed=SEEDS, kind=KINDS, k=st.sampled_from([1, 2, 20, 300, 4000, 30000]), ties=st.sampled_from(TopKTies)
)
@settings(max_examples=150)
def test_top_k_equals_a_full_sort(size: int, seed: int, kind: str, k: int, ties: TopKTies) -> None:
    logits = random_logits(size, seed, kind)
    logits[np.random.default_rng(seed).random(size) < 0.3] = -np.inf
    kept = top_k.top_k(logits, k, ties)
    order = np.lexsort((np.arange(size), -logits))
    if k >= size:
        wanted = np.arange(size)
    elif ties is TopKTies.LOWEST_ID:
        wanted = np.sort(order[:k])
    else:
        wanted = np.flatnonzero(logits >= logits[order[k - 1]])
    assert np.array_equal(kept, wanted)


@given(
    size=SIZES,
    seed=SEEDS,
    kind=KINDS,
    mass=st.one_of(st.floats(1e-6, 1 - 1e-9), st.sampled_from([0.9, 0.95, 0.999, 0.5])),
    ties=st.sampled_from(TopPTies),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=150)
def test_top_p_keeps_what_a_full_sort_keeps(
    size: int, seed: int, kind: str, mass: float, ties: TopPTies, dtype: type
) -> None:
    logits = random_logits(size, seed, kind)
    weights = np.exp(logits - logits.max()).astype(dtype)
    total = float(weights.sum())
    kept = top_p.top_p(weights, total, mass, ties)
    ids = np.arange(size) if ties is TopPTies.LOWEST_ID else -np.arange(size)
    order = np.lexsort((ids, -weights))
    before = np.concatenate([[0.0], np.cumsum(weights[order], dtype=np.float64)[:-1]])
    # The cumulated masses are the same float64 numbers on both sides: no slack.
    wanted = np.sort(order[before < mass * total])
    assert np.array_equal(kept, wanted)
    assert len(kept) >= 1


@given(
    weights=hnp.arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    mass=st.floats(0.01, 0.99),
)
def test_top_p_ties_go_by_id(weights: np.ndarray, mass: float) -> None:
    weights[0] = 1.0
    for ties in TopPTies:
        kept = set(top_p.top_p(weights, float(weights.sum()), mass, ties).tolist())
        edge = min(weights[i] for i in kept)
        tied = [i for i in range(len(weights)) if weights[i] == edge]
        inside = [i in kept for i in (tied if ties is TopPTies.LOWEST_ID else tied[::-1])]
        assert inside == sorted(inside, reverse=True), "a later id was kept before an earlier one"
        assert all(i in kept for i in range(len(weights)) if weights[i] > edge)


@given(seed=SEEDS, low=st.floats(0.001, 1.0), high=st.floats(0.001, 1.0), size=st.sampled_from([5, 3000]))
@settings(max_examples=60)
def test_supports_are_nested(seed: int, low: float, high: float, size: int) -> None:
    low, high = sorted((low, high))
    logits = random_logits(size, seed, "normal")
    scores = logits - logits.max()
    weights = np.exp(scores)
    total = float(weights.sum())
    wide, narrow = (set(np.flatnonzero(min_p.keeps(scores, share)).tolist()) for share in (low, high))
    assert narrow <= wide
    assert int(np.argmax(scores)) in narrow
    wide, narrow = (set(top_p.top_p(weights, total, min(m, 0.9999), TopPTies.LOWEST_ID).tolist()) for m in (high, low))
    assert narrow <= wide
    counts = sorted({1 + int(low * size), 1 + int(high * size)})
    sets = [set(top_k.top_k(logits, k, TopKTies.KEPT).tolist()) for k in counts]
    assert sets[0] <= sets[-1]


def test_min_p_keeps_ties_at_the_edge_and_the_maxima_at_one() -> None:
    scores = np.array([0.0, np.log(0.25), 0.0, np.nextafter(np.log(0.25), -2)])
    assert min_p.keeps(scores, 0.25).tolist() == [True, True, True, False]
    assert min_p.keeps(scores, 1.0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("share", [0.05, 0.1, 1 / 3, 0.7, 1e-30])
def test_min_p_compares_float32_scores_with_the_float64_logarithm(share: float) -> None:
    edge = np.float32(np.log(share))
    near = np.array([np.nextafter(edge, np.float32(-200)), edge, np.nextafter(edge, np.float32(1))], dtype=np.float32)
    assert min_p.keeps(near, share).tolist() == [float(score) >= float(np.log(share)) for score in near]


def test_a_filter_sees_what_the_one_before_left() -> None:
    # min-p first leaves ids 0 to 2 with masses .5, .3, .2; top-p .75 of that keeps two, of the whole row three.
    logits = np.log([0.4, 0.24, 0.16] + [0.02] * 10).tolist()
    assert np.count_nonzero(law_of(logits, min_p=0.3, top_p=0.75).at(None, 13)) == 2
    assert np.count_nonzero(law_of(logits, top_p=0.75).at(None, 13)) == 3
    # mlx takes top-p first, of the whole row.
    assert np.count_nonzero(law_of(logits, min_p=0.3, top_p=0.75, preset="mlx").at(None, 13)) == 3
