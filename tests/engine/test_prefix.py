"""The index of prefixes against a plain search over everything that was published."""

from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.engine.prefix import BLOCK_SIZE, PrefixIndex, num_common

tokens = st.lists(st.integers(0, 1), max_size=3 * BLOCK_SIZE)
# Long runs of one token, so that blocks are shared.
sequences = st.builds(
    lambda zeros, ones, rest: [0] * zeros + [1] * ones + rest, st.integers(0, 40), st.integers(0, 20), tokens
)


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(0, 4), sequences, max_size=5),
    sequences,
    st.integers(0, 90),
    st.integers(-1, 4),
    st.sets(st.integers(0, 4)),
)
def test_longest_is_what_a_plain_search_finds(published, asked, most, besides, forgotten):
    index = PrefixIndex()
    for slot, token_ids in published.items():
        for length in (len(token_ids) // 2, len(token_ids)):
            index.publish(slot, token_ids, length)
    for slot in forgotten:
        index.forget(slot)
        published.pop(slot, None)
    most = min(most, len(asked))
    lengths = [min(num_common(asked, token_ids), most) for slot, token_ids in published.items() if slot != besides]
    best = max(lengths, default=0)
    match = index.longest(asked, most, besides=besides)
    if best < BLOCK_SIZE:
        assert match is None
    else:
        assert match is not None and match.length == best and match.slot != besides
        assert num_common(asked, published[match.slot]) >= best
    for slot in list(published):
        index.forget(slot)
    assert len(index) == 0


@given(sequences, sequences)
def test_num_common(first, second):
    length = num_common(first, second)
    assert first[:length] == second[:length]
    assert length == min(len(first), len(second)) or first[length] != second[length]


def test_a_slot_that_is_cut_back_is_published_anew():
    index = PrefixIndex()
    index.publish(0, [1] * 40, 40)
    index.publish(0, [1] * 20 + [2] * 20, 40)
    assert index.longest([1] * 40, 40).length == 20
    grown = [3] * 16
    index.publish(1, grown, 16)
    grown += [3] * 10
    index.publish(1, grown, 20)
    assert index.longest([3] * 40, 40).length == 20
