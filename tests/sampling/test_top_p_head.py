"""Top-p from the largest logits alone: what the whole row gives, or no answer."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.sampling import TopPTies, top_p, top_p_head
from draftproof.sampling.survivors import Survivors

SIZE = 5000


def survivors(logits: np.ndarray, temperature: float = 1.0) -> Survivors:
    left = Survivors(logits, logits.max())
    left.temperature = temperature
    return left


def whole(logits: np.ndarray, mass: float, ties: TopPTies, temperature: float = 1.0) -> list[int]:
    weights = survivors(logits, temperature).weights()
    return top_p.top_p(weights, float(weights.sum()), mass, ties).tolist()


@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.5, 3.0, 6.0, 20.0]),
    step=st.sampled_from([0.0, 0.25, 2.0]),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    mass=st.one_of(st.floats(0.01, 0.9999), st.sampled_from([0.5, 0.9, 0.95, 1 - 1e-7])),
    ties=st.sampled_from(list(TopPTies)),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=300)
def test_an_answer_is_the_whole_row_s(
    seed: int, spread: float, step: float, temperature: float, mass: float, ties: TopPTies, dtype: type
) -> None:
    logits = spread * np.random.default_rng(seed).standard_normal(SIZE)
    if step:
        logits = step * np.round(logits / step)  # many ties
    logits = logits.astype(dtype)
    kept = top_p_head.top_p_head(survivors(logits, temperature), mass, ties)
    assert kept is None or kept.tolist() == whole(logits, mass, ties, temperature)


def test_peaked_rows_have_an_answer_and_flat_ones_do_not() -> None:
    logits = np.random.default_rng(3).standard_normal(SIZE).astype(np.float32)
    assert top_p_head.top_p_head(survivors(logits), 0.95, TopPTies.LOWEST_ID) is None
    kept = top_p_head.top_p_head(survivors(8 * logits), 0.95, TopPTies.LOWEST_ID)
    assert kept is not None and kept.tolist() == whole(8 * logits, 0.95, TopPTies.LOWEST_ID)


def heavy_tail() -> np.ndarray:
    """Weights 1 and 1e-3, and just outside the head 49,000 that weigh 7.1e-4 together."""
    logits = np.full(49_002, -top_p_head.DEPTH - 0.05, dtype=np.float32)
    logits[7], logits[9] = 0.0, math.log(1e-3)
    return logits


MASSES = np.linspace(0.9975, 0.9995, 401).tolist()


def wrong_answers() -> int:
    logits = heavy_tail()
    found = [(top_p_head.top_p_head(survivors(logits), mass, TopPTies.LOWEST_ID), mass) for mass in MASSES]
    return sum(kept is not None and kept.tolist() != whole(logits, mass, TopPTies.LOWEST_ID) for kept, mass in found)


def test_an_edge_between_the_two_ends_has_no_answer() -> None:
    logits = heavy_tail()
    answers = [top_p_head.top_p_head(survivors(logits), mass, TopPTies.LOWEST_ID) for mass in MASSES]
    assert wrong_answers() == 0
    assert any(kept is None for kept in answers) and any(kept is not None and len(kept) == 1 for kept in answers)


@pytest.mark.parametrize("wrong", ["tail left out", "depth in the wrong base"])
def test_a_tail_that_is_taken_too_light_is_caught(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        @staticmethod
        def exp(value: float) -> float:
            return 0.0 if wrong == "tail left out" else 10.0**value

    monkeypatch.setattr(top_p_head, "math", Wrong)
    assert wrong_answers() > 0


def test_weights_that_are_there_are_used() -> None:
    logits = 8 * np.random.default_rng(3).standard_normal(SIZE).astype(np.float32)
    left = survivors(logits)
    left.weights()
    assert top_p_head.top_p_head(left, 0.95, TopPTies.LOWEST_ID) is None
