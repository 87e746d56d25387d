"""Every preset against the independent sampler of reference.py, on random rows, parameters and histories.

A case is left out if a filter's edge is nearer than rounding can decide: if moving top_p or min_p by a
relative 1e-9 changes what the reference keeps. Edges that are exact have tests of their own (T31).
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftproof.core import Law
from draftproof.sampling import PRESETS
from tests.sampling import reference
from tests.sampling.reference import Wanted
from tests.sampling.rows import law_of

SIZE = st.integers(2, 12)
EDGE = 1e-9


@st.composite
def cases(draw: st.DrawFn, preset: str, exact: bool = False) -> tuple[list[float], Wanted, list[int], list[int]]:
    size = draw(SIZE)
    ids = st.integers(0, size - 1)
    # A grid makes ties common; free floats make them rare. `exact`: every step up to exp is exact in float32.
    fine = st.integers(-1280, 1280).map(lambda i: i / 64) if exact else st.floats(-20, 20)
    values = st.one_of(st.integers(-12, 12).map(lambda i: i / 4), fine)
    logits = draw(st.lists(values, min_size=size, max_size=size))
    prompt, output = draw(st.lists(ids, max_size=30)), draw(st.lists(ids, max_size=90))
    want = Wanted(
        temperature=draw(st.sampled_from([0.5, 1.0, 2.0] if exact else [0.0, 0.3, 0.7, 1.0, 1.0, 2.5])),
        top_k=draw(st.sampled_from([0, 1, 2, 3, 5, 20])),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0.05, 0.999))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0.001, 1.0))),
        repetition=draw(st.sampled_from([1.0, 2.0, 0.5] if exact else [1.0, 1.0, 1.3, 0.8])),
        bias=draw(st.dictionaries(ids, st.sampled_from([-2.0, 0.5, 3.0, -math.inf]), max_size=2)),
    )
    if preset != "hf":
        want.frequency = draw(st.sampled_from([0.0, 0.5, -0.25]))
        want.presence = draw(st.sampled_from([0.0, 0.5, -1.0]))
    if preset in ("vllm", "hf"):
        want.allowed = draw(st.one_of(st.none(), st.lists(ids, min_size=1, max_size=size, unique=True)))
        words = draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=2))
        want.ending = draw(st.lists(ids, max_size=2, unique=True))
        want.bad_words = [word for word in words if preset != "hf" or word not in [[i] for i in want.ending]]
        want.min_tokens = draw(st.sampled_from([0, 0, len(output), len(output) + 1]))
    open_ids = set(range(size)) if want.allowed is None else set(want.allowed)
    open_ids -= {i for i, bias in want.bias.items() if bias == -math.inf} | {word[-1] for word in want.bad_words}
    assume(open_ids - set(want.ending))
    return logits, want, prompt, output


def ours(logits: list[float], want: Wanted, prompt: list[int], output: list[int], preset: str, dtype: str) -> Law:
    return law_of(
        logits,
        prompt=prompt,
        output=output,
        preset=preset,
        dtype=dtype,
        eos=want.ending,
        bad_word_ids=want.bad_words,
        temperature=want.temperature,
        top_k=want.top_k,
        top_p=want.top_p,
        min_p=want.min_p,
        repetition_penalty=want.repetition,
        frequency_penalty=want.frequency,
        presence_penalty=want.presence,
        logit_bias=want.bias,
        allowed_token_ids=want.allowed,
        min_tokens=want.min_tokens,
        max_tokens=None,
    )


def is_decided(
    logits: list[float], want: Wanted, prompt: list[int], output: list[int], preset: str, edge: float
) -> bool:
    supports = set()
    for factor in (1 - edge, 1.0, 1 + edge):
        moved = replace(want)
        moved.top_p = want.top_p if want.top_p == 1 else min(want.top_p * factor, 1 - 1e-12)
        moved.min_p = min(want.min_p * factor, 1.0)
        supports.add(frozenset(reference.law_of(logits, moved, prompt, output, preset)))
    return len(supports) == 1


@pytest.mark.parametrize("preset", list(PRESETS))
def test_float64_law_equals_the_reference(preset: str) -> None:
    @settings(max_examples=300)
    @given(cases(preset))
    def check(case: tuple[list[float], Wanted, list[int], list[int]]) -> None:
        logits, want, prompt, output = case
        assume(is_decided(logits, want, prompt, output, preset, EDGE))
        wanted = reference.law_of(logits, want, prompt, output, preset)
        law = ours(logits, want, prompt, output, preset, "float64")
        probs = np.asarray(law.at(None, len(logits)), dtype=np.float64)
        assert set(np.flatnonzero(probs).tolist()) == set(wanted)
        # Both sides do a dozen float64 operations per token.
        np.testing.assert_allclose(probs, [wanted.get(i, 0.0) for i in range(len(logits))], rtol=1e-12, atol=1e-300)

    check()


def test_float32_law_is_the_float64_law_within_its_rounding() -> None:
    @settings(max_examples=200)
    @given(cases("vllm", exact=True))
    def check(case: tuple[list[float], Wanted, list[int], list[int]]) -> None:
        logits, want, prompt, output = case
        # Scores are exact; exp, a sum of 12 terms and a division stay within 1e-5 in float32, top-p's masses too.
        assume(is_decided(logits, want, prompt, output, "vllm", 1e-5))
        exact, rounded = (ours(logits, want, prompt, output, "vllm", kind) for kind in ("float64", "float32"))
        left, right = (np.asarray(law.at(None, len(logits)), dtype=np.float64) for law in (exact, rounded))
        assert (right[left == 0] == 0).all()
        assert (right[left > 1e-30] > 0).all(), "only what float32 can't hold may vanish"
        np.testing.assert_allclose(right, left, rtol=1e-5, atol=1e-30)

    check()
