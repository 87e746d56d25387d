"""Shared by the verifiers' tests: noise that answers from a script, exact rows, and binomial bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np

from draftproof.core import Dense, Draft, Key, Law, Noise, Number, Purpose, Weights


def exact(numbers: str) -> Dense:
    """A Dense law of Fractions from "0.5 0.3 0.2"."""
    return Dense(np.array([Fraction(number) for number in numbers.split()], dtype=object))


def floats(*numbers: float, dtype: Any = np.float32) -> Dense:
    """A Dense law of floats."""
    return Dense(np.array(numbers, dtype=dtype))


class Scripted:
    """Noise whose coins are given numbers and whose choices are given tokens, recorded in the order asked."""

    def __init__(
        self, *, uniforms: dict[int, Number] | None = None, choose: Callable[[Key, Weights], int] | None = None
    ):
        self._uniforms = uniforms or {}
        self._choose = choose
        self.asked: list[Key] = []
        self.weights: list[list[Number]] = []

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        self.asked.append(key)
        return bool(self._uniforms[key.index] * denominator < numerator)

    def choice(self, key: Key, weights: Weights, token_ids: Any = None) -> int:
        self.asked.append(key)
        self.weights.append(list(weights))
        index = int(np.flatnonzero(weights)[0]) if self._choose is None else self._choose(key, weights)
        return index if token_ids is None else int(token_ids[index])


def drawn(start: int, law: Law, token_ids: Sequence[int]) -> Draft:
    """A chain of the given tokens, drawn from `law` by noise that is made to choose them."""
    draft = Draft.empty(start)
    for token_id in token_ids:
        noise: Noise = Scripted(choose=lambda key, weights, token_id=token_id: token_id)  # type: ignore[misc]
        draft = draft.draw(law, noise)
    return draft


def binomial_interval(num_trials: int, probability: str, error: float) -> tuple[int, int]:
    """[low, high] that a Binomial(num_trials, probability) count leaves with at most `error`, half on each side."""
    share = Fraction(probability)
    mass = [comb(num_trials, k) * share**k * (1 - share) ** (num_trials - k) for k in range(num_trials + 1)]

    def first(values: list[Fraction]) -> int:
        total, index = Fraction(0), 0
        while total + values[index] <= error / 2:
            total, index = total + values[index], index + 1
        return index

    return first(mass), num_trials - first(mass[::-1])


TARGET, COIN, RESIDUAL, BONUS, MATCH = (
    Purpose.TARGET,
    Purpose.COIN,
    Purpose.RESIDUAL,
    Purpose.BONUS,
    Purpose.MATCH,
)
