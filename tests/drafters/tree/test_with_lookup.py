"""Laws mixed with what followed where the text repeats itself: which match, with what weight, and what it learns."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core import Dense, PointMass, Sparse
from draftproof.drafters.automaton import ROOT_STATE, Place, SuffixAutomaton
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree import BestFirst, Shares, TreeDrafter
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.with_lookup import FIRST_COUNT, FIRST_WEIGHT, MOST_COUNT, WithLookup, mixed
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, resolve
from tests.drafters.naive import ends_of
from tests.drafters.requests import verdict_of
from tests.drafters.tree.tables import TableSource, uneven_table

SIZE = 12
TEXT = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 5, 1, 2]


class Source(TableSource):
    """A table's laws; `look` is what a tree drafter gives a source."""

    look = None

    def confidence(self, slot, context_ids):
        return 0.25


def request_of(context_ids, num_tokens=8, slot=0, seed=1, **params):
    row = resolve(SamplingParams(**params), None, SIZE)
    return DraftRequest(slot, context_ids, num_tokens, KeyedNoise(seed), True, row, History(context_ids))


def naive_counts(context_ids, path, shortest):
    """What followed the longest suffix of (context, path) that occurred before."""
    text = [*context_ids, *path]
    for size in range(len(text), shortest - 1, -1):
        ends = ends_of(context_ids, text[len(text) - size :])
        if ends:
            return size, Counter(context_ids[end + 1] for end in ends)
    return 0, Counter()


def naive_mix(law, counts, weight):
    own = law.at(None, SIZE).astype(float)
    if not counts:
        return own
    shares = np.array([counts[token_id] for token_id in range(SIZE)]) / counts.total()
    return (1 - weight) * own + weight * shares


def grown(source, request):
    """The laws by path that a tree of this request was grown from."""
    laws, add = {}, Growing.add

    def spy(tree, parent, token_ids, log_shares, law):
        laws[tuple(int(tree.token_ids[i]) for i in tree.path_to(parent))] = law
        add(tree, parent, token_ids, log_shares, law)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Growing, "add", spy)
        TreeDrafter(source, BestFirst(5, num_per_round=3), Shares(1.0)).propose([request])
    return laws


def check_laws(context_ids, shortest, weight=FIRST_WEIGHT):
    table = uneven_table(SIZE, 3)
    laws = grown(WithLookup(Source(table), shortest), request_of(context_ids))
    assert len(laws) > 4
    for path, law in laws.items():
        _, counts = naive_counts(context_ids, path, shortest)
        expected = naive_mix(Source(table).law((*context_ids, *path)), counts, weight)
        assert np.allclose(law.at(None, SIZE), expected, atol=1e-6), path
    return laws


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_laws_are_mixtures_with_what_followed_the_longest_repeated_suffix(shortest):
    random.seed(shortest)
    check_laws(TEXT, shortest)
    for _ in range(20):
        check_laws([random.randrange(4) for _ in range(random.randrange(4, 30))], shortest)


@pytest.mark.parametrize("mutant", ["no weight", "the context's match at every node", "shorter matches"])
def test_other_mixtures_are_told_apart(mutant, monkeypatch):
    if mutant == "no weight":
        monkeypatch.setattr(WithLookup, "weight", lambda self, kind: 0.0)
    elif mutant == "shorter matches":
        check = WithLookup._match
        monkeypatch.setattr(
            WithLookup, "_match", lambda self, request, place: check(self, request, Place(ROOT_STATE, 0))
        )
    else:
        monkeypatch.setattr(SuffixAutomaton, "after", lambda self, place, token_id: place)
    with pytest.raises(AssertionError):
        check_laws(TEXT, 1)


laws = st.integers(1, SIZE).flatmap(lambda n: st.lists(st.integers(0, SIZE - 1), min_size=n, max_size=n, unique=True))


@given(laws, laws, st.floats(0.01, 0.99), st.booleans())
def test_a_mixture_is_a_law_over_both_supports(own_ids, other_ids, weight, dense):
    own = Sparse(np.array(sorted(own_ids)), np.full(len(own_ids), np.float32(1 / len(own_ids))))
    law = Dense(own.at(None, SIZE)) if dense else own
    other = Sparse(np.array(sorted(other_ids)), np.full(len(other_ids), 1 / len(other_ids)))
    other = PointMass(other_ids[0]) if len(other_ids) == 1 else other
    found = mixed(law, other, weight)
    expected = (1 - weight) * own.at(None, SIZE).astype(float) + weight * np.asarray(other.at(None, SIZE), dtype=float)
    assert np.allclose(np.asarray(found.at(None, SIZE), dtype=float), expected, atol=1e-6)
    assert isinstance(found, Sparse | PointMass)
    assert set(np.flatnonzero(expected)) == set(found.weights()[1].tolist())


def test_a_weight_is_the_share_of_matches_that_were_right_where_the_law_was_not():
    """Along a text in which matches are right: expectation maximisation with the law's own probabilities."""
    source = WithLookup(Source(uneven_table(SIZE, 3)), 2)
    text = [1, 2, 3] * 30
    expected = {}
    for end in range(6, len(text)):
        context_ids, token_id = text[:end], text[end]
        [law] = source.root_laws([request_of(context_ids)])
        source.end_of_round([])
        size, _ = naive_counts(context_ids, (), 2)
        kind = (sum(min(size, 32) >= length for length in (2, 3, 4, 6, 8, 12, 16, 24)), True)
        weight, count = expected.get(kind, (FIRST_WEIGHT, FIRST_COUNT))
        own = weight / (weight + (1 - weight) * Source(uneven_table(SIZE, 3)).law(tuple(context_ids)).prob(token_id))
        expected[kind] = (weight + (own - weight) / (count + 1), count + 1)
        source.observe(0, [*context_ids, token_id], verdict_of([token_id]))
    assert expected.keys() == source._weights.keys() and len(expected) >= 6
    for kind, (weight, count) in expected.items():
        assert source._weights[kind] == (pytest.approx(weight, rel=1e-5), count)
    assert source.weight(max(expected)) > 0.8 and max(count for _, count in expected.values()) <= MOST_COUNT


def test_matches_that_are_wrong_lose_their_weight():
    source = WithLookup(Source(uneven_table(SIZE, 3)), 2)
    for turn in range(200):
        source.root_laws([request_of(TEXT, slot=turn)])
        source.observe(turn, [*TEXT, 7], verdict_of([7]))
    assert source.weight((1, False)) < 0.02
    assert source.weight((8, True)) == FIRST_WEIGHT


class Never(Source):
    """Gives token 0 all of its weight."""

    def law(self, context):
        return Dense(np.eye(1, SIZE, dtype=np.float32)[0])


def test_a_weight_stays_where_it_can_be_corrected():
    """Of matches that were always right where the law had nothing, 20,000 times, and then always wrong."""
    source, text = WithLookup(Never(uneven_table(SIZE, 3)), 2), [1, 2, 3, 1, 2]
    for token_id, bound in [(3, 0.99), (0, 0.01)]:
        for _ in range(20_000):
            source.root_laws([request_of(text)])
            source.observe(0, [*text, token_id], verdict_of([token_id]))
        assert source.weight((1, True)) == bound
        [law] = source.root_laws([request_of(text)])
        assert law.prob(3) == pytest.approx(bound, rel=1e-5) and law.prob(0) == pytest.approx(1 - bound, rel=1e-5)


def test_what_was_never_committed_teaches_nothing():
    source = WithLookup(Source(uneven_table(SIZE, 3)), 2)
    source.root_laws([request_of(TEXT)])
    source.observe(0, TEXT, verdict_of([]))
    source.root_laws([request_of(TEXT)])
    source.release(0)
    source.observe(0, [*TEXT, 3], verdict_of([3]))
    assert not source._weights


def test_what_is_not_about_laws_is_the_sources():
    inner = Source(uneven_table(SIZE, 3))
    source = WithLookup(inner, 2)
    source.look = "look"
    assert inner.look == "look" == source.look
    assert (source.method, source.max_depth, source.costs_passes, source.log_discount) == (
        "draft_model",
        None,
        False,
        0.0,
    )
    assert source.proposes_without_confidence and source.confidence(0, TEXT) == 0.25


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.lists(st.integers(0, 3), max_size=8))
def test_a_place_after_a_token_is_the_longest_suffix_that_is_there(text, path):
    automaton = SuffixAutomaton(count_depth=64)
    for token_id in text:
        automaton.append(token_id)
    place, whole = automaton.tail, list(text)
    joined = ",".join(map(str, text)) + ","
    for token_id in path:
        place, whole = automaton.after(place, token_id), [*whole, token_id]
        longest = next(
            size
            for size in range(len(whole), -1, -1)
            if ("," + joined).find("," + "".join(f"{t}," for t in whole[len(whole) - size :])) >= 0
        )
        assert place.length == longest
        assert (place.state == ROOT_STATE) == (longest == 0)
        whole = whole[len(whole) - longest :] if longest else []


def test_places_are_the_trees_own():
    """Another tree of the same slot begins anew."""
    source = WithLookup(Source(uneven_table(SIZE, 3)), 1)
    first, second = grown(source, request_of(TEXT)), grown(source, request_of(TEXT))
    assert first.keys() == second.keys() and len(first) > 4 and not source._places
