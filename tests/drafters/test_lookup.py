"""ngram and suffix: incremental state = rebuilt state = a full scan, for any context and any sequence of calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core import DrawnWith, PointMass
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.suffix import SuffixDrafter
from draftproof.errors import ParameterError
from tests.drafters.naive import ends_of, ngram_proposal, suffix_proposal
from tests.drafters.requests import request_for, verdict_of

# Few different tokens, so that repeats of every length, overlaps and ties are common.
contexts = st.lists(st.integers(0, 3), min_size=0, max_size=40) | st.lists(st.integers(0, 1), max_size=60)
windows = st.tuples(st.integers(1, 3), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
chunks = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12)


def proposal(drafter, context_ids, num_tokens, slot=0):
    (draft,) = drafter.propose([request_for(context_ids, num_tokens, slot)])
    assert draft.start == len(context_ids)
    assert draft.is_chain and draft.drawn_with is DrawnWith.NOTHING
    assert draft.laws == tuple(PointMass(token_id) for token_id in draft.token_ids)
    return list(draft.token_ids)


@given(contexts, windows, st.integers(0, 8))
def test_ngram_is_the_full_scan(context_ids, window, num_tokens):
    drafter = NgramDrafter(*window)
    assert proposal(drafter, context_ids, num_tokens) == ngram_proposal(context_ids, *window, num_tokens)


@given(contexts, windows, st.integers(1, 8))
def test_an_ngram_proposal_stands_in_the_context_after_the_suffix(context_ids, window, num_tokens):
    drafter = NgramDrafter(*window)
    drafted = proposal(drafter, context_ids, num_tokens)
    length = drafter.confidence(0, context_ids)
    if not drafted:
        assert length is None
        return
    pattern = [*context_ids[len(context_ids) - int(length) :], *drafted]
    assert any(context_ids[i : i + len(pattern)] == pattern for i in range(len(context_ids)))


@given(contexts, windows, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 8))
def test_suffix_is_the_full_scan(context_ids, window, min_token_prob, num_tokens):
    drafter = SuffixDrafter(*window, min_token_prob)
    expected = suffix_proposal(context_ids, *window, min_token_prob, num_tokens)
    assert proposal(drafter, context_ids, num_tokens) == expected
    if num_tokens:
        assert (drafter.confidence(0, context_ids) is None) == (not expected)


@given(contexts, windows, st.integers(1, 8))
def test_a_suffix_proposal_follows_a_match_in_the_context(context_ids, window, num_tokens):
    shortest, _ = window
    drafted = proposal(SuffixDrafter(*window, 0.0), context_ids, num_tokens)
    text = [*context_ids, *drafted]
    for position in range(len(context_ids), len(text)):
        before = text[position - shortest : position]
        assert text[position] in {context_ids[end + 1] for end in ends_of(context_ids, before)}


@given(chunks, windows, st.booleans())
def test_incremental_state_is_rebuilt_state(pieces, window, one_list):
    """Whether the caller's list grows in place or a new one comes each time, with any observes between."""
    makers = (lambda: NgramDrafter(*window), lambda: SuffixDrafter(*window))
    for make in makers:
        grown, context_ids = make(), []
        for index, piece in enumerate(pieces):
            context_ids = context_ids if one_list else list(context_ids)
            context_ids.extend(piece)
            if index % 2:
                grown.observe(0, context_ids, verdict_of(piece))
            assert grown.confidence(0, context_ids) == make().confidence(0, context_ids)
            assert proposal(grown, context_ids, 5) == proposal(make(), context_ids, 5)


@given(contexts, contexts, windows)
def test_a_replaced_context_is_never_mixed_with_the_old_one(first, second, window):
    for make in (lambda: NgramDrafter(*window), lambda: SuffixDrafter(*window)):
        fresh = proposal(make(), second, 5)
        replaced, released = make(), make()
        proposal(replaced, first, 5)
        assert proposal(replaced, second, 5) == fresh
        proposal(released, first, 5)
        released.release(0)
        assert proposal(released, second, 5) == fresh


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_slots_are_apart(make):
    drafter = make()
    alone = [proposal(make(), ids, 4) for ids in ([1, 2, 3, 1, 2], [7, 8, 9, 7, 8])]
    both = drafter.propose([request_for([1, 2, 3, 1, 2], 4, 0), request_for([7, 8, 9, 7, 8], 4, 1)])
    assert [list(draft.token_ids) for draft in both] == alone
    assert alone[0][:1] == [3] and alone[1][:1] == [9]


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_a_list_that_shrank_and_grew_again_is_indexed_anew(make):
    drafter, context_ids = make(), [1, 2, 3, 4, 1, 2]
    proposal(drafter, context_ids, 4)
    del context_ids[3:]
    proposal(drafter, context_ids, 4)
    context_ids += [9, 9, 9, 9, 1, 2]
    assert proposal(drafter, context_ids, 4) == proposal(make(), list(context_ids), 4)


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter])
def test_another_sequence_with_the_same_last_tokens_is_indexed_anew(make):
    """Only a list that grew in place is trusted beyond its last tokens."""
    tail = list(range(100, 150))
    first, second = [1, 2, 7, 7, *tail, 1, 2], [1, 2, 8, 8, *tail, 1, 2]
    drafter = make()
    proposal(drafter, first[:54], 3)
    assert proposal(drafter, second, 3)[:2] == [8, 8]


def test_the_match_that_is_followed_by_enough_wins_over_the_most_recent():
    # "1 2" ends at 1, 5 and (the suffix) 8; the match at 5 is followed by three tokens, that at 1 by seven.
    context_ids = [1, 2, 3, 4, 1, 2, 5, 1, 2]
    drafter = NgramDrafter(2, 2)
    assert proposal(drafter, context_ids, 3) == [5, 1, 2]
    assert proposal(drafter, context_ids, 4) == [3, 4, 1, 2]


def test_suffix_prefers_the_most_frequent_and_then_the_most_recent():
    drafter = SuffixDrafter(1, 1, 0.0)
    assert proposal(drafter, [1, 5, 1, 5, 1, 6, 1], 1) == [5]
    assert proposal(drafter, [1, 5, 1, 6, 1], 1) == [6]


def test_suffix_goes_on_past_the_end_of_periodic_text():
    assert proposal(SuffixDrafter(2, 32, 0.1), [1, 2, 3] * 3, 10) == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]


def test_a_step_does_not_scan_the_context():
    """What is touched per step is counted, not timed: a context of 20,000 tokens is read once."""
    reads = 0

    class Counting(list):
        def __getitem__(self, key):
            nonlocal reads
            reads += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
            return super().__getitem__(key)

    for make in (NgramDrafter, SuffixDrafter):
        context_ids = Counting((7 * i * i) % 101 for i in range(20_000))
        drafter = make()
        drafter.confidence(0, context_ids)
        reads = 0
        for token_id in range(50):
            context_ids.append(token_id)
            drafter.confidence(0, context_ids)
            drafter.propose([request_for(context_ids, 8)])
        assert reads <= 50 * (1 + 2 * 32)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: NgramDrafter(0, 5), "prompt_lookup_min"),
        (lambda: NgramDrafter(3, 2), "prompt_lookup_max"),
        (lambda: SuffixDrafter(0), "min_match_length"),
        (lambda: SuffixDrafter(3, 2), "max_match_length"),
        (lambda: SuffixDrafter(min_token_prob=1.5), "min_token_prob"),
        (lambda: SuffixDrafter(min_token_prob=float("nan")), "min_token_prob"),
        (lambda: request_for([1], -1), "num_tokens"),
    ],
)
def test_bad_settings_are_refused_by_name(make, field):
    with pytest.raises(ParameterError, match=field):
        make()
