"""For any laws and lengths: production arithmetic on float32 keeps the law, by enumeration, within its rounding."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Draft
from draftproof.noise import KeyedNoise
from draftproof.verify import VERIFIERS, get_verifier
from draftproof.verify.exact import max_error
from draftproof.verify.proposals import Sampled
from draftproof.verify.tables import Context, LawTable

SAMPLING = [name for name in VERIFIERS if name != "greedy"]
WEIGHT = st.one_of(
    st.just(0.0), st.floats(1e-3, 1.0), st.sampled_from([1e-30, 1e-12, 1e-7, 0.5, 1.0]), st.integers(1, 3).map(float)
)


def _rows(vocab_size: int) -> st.SearchStrategy[list[list[float]]]:
    row = st.lists(WEIGHT, min_size=vocab_size, max_size=vocab_size).filter(any)
    return st.lists(row, min_size=vocab_size, max_size=vocab_size)


def _float_table(rows: list[list[float]], form: str) -> LawTable:
    """float32 rows, normalised in float32 as a sampler chain does; the row depends on the last token."""

    def weights(context: Context) -> list[np.float32]:
        values = np.array(rows[context[-1] % len(rows)], dtype=np.float32)
        return list(values / values.sum())

    return LawTable(len(rows), weights, form=form, exact=False, dtype=np.float32)  # type: ignore[arg-type]


@st.composite
def _instances(draw: st.DrawFn) -> tuple[LawTable, LawTable, int]:
    vocab_size = draw(st.integers(2, 4))
    form = st.sampled_from(["Dense", "Sparse"])
    target = _float_table(draw(_rows(vocab_size)), draw(form))
    draft = _float_table(draw(_rows(vocab_size)), draw(form))
    return target, draft, draw(st.integers(1, 3 if vocab_size == 2 else 2))


@pytest.mark.parametrize("name", SAMPLING)
@settings(max_examples=25)
@given(instance=_instances())
def test_the_law_error_in_float32_is_rounding(name: str, instance: tuple[LawTable, LawTable, int]) -> None:
    """The bar is 1e-6 in the probability of any sequence; float32 rounds a row's probabilities by 2^-24 of each."""
    target, draft, length = instance
    assert max_error(get_verifier(name), target, Sampled(draft, (1,) * length)) <= Fraction(1, 10**6)


@settings(max_examples=60)
@given(instance=_instances(), seed=st.integers(0, 2**64 - 1))
def test_keyed_emits_what_plain_decoding_emits(instance: tuple[LawTable, LawTable, int], seed: int) -> None:
    """Through the production noise: eight tokens, any draft, its own noise or the target's field."""
    target, draft_table, length = instance
    verifier, noise = get_verifier("keyed"), KeyedNoise(seed)
    texts = []
    for drafter in (None, Sampled(draft_table, (1,) * length), Sampled(draft_table, (2, 1), share_target_field=True)):
        text: Context = (0,)
        while len(text) < 9:
            draft = Draft.empty(len(text)) if drafter is None else drafter(text, noise)
            paths = [tuple(draft.token_ids[node] for node in draft.path_to(end)) for end in range(-1, len(draft))]
            text += verifier.verify(draft, [target.law(text + path) for path in paths], noise).token_ids
        texts.append(text[:9])
    assert texts[0] == texts[1] == texts[2]
