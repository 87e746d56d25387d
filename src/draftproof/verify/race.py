"""Exact rational laws of exponential races: what two laws do with one shared field.

Formula: E_x are independent exponentials, i = argmin E_x / a_x and j = argmin E_x / b_x.
P(i = j = x) = 1 / sum over y of max(a_y / a_x, b_y / b_x).
For i != j let S = E_i / a_i and T = E_j / b_j. Both win iff a_j S < b_j T, b_i T < a_i S and E_k > max(a_k S, b_k T)
for every other k. With T = r S and S integrated out,
P(i, j) = integral of a_i b_j / C(r)^2 dr over a_j / b_j < r < a_i / b_i, C(r) = sum over k of max(a_k, b_k r),
and C is linear between the breakpoints a_k / b_k, where the integral is (r2 - r1) / (C(r1) C(r2)).
Inputs: [V] Fractions each. Outputs: Fractions.
Source: derived here; the diagonal is the match probability of Daliri, Musco & Suresh, 2408.07978, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def race_joint(
    first_weights: Sequence[Fraction], second_weights: Sequence[Fraction]
) -> dict[tuple[int, int], Fraction]:
    """The joint law of (argmin E / first, argmin E / second) over one shared field E, without pairs of probability 0.

    first_weights, second_weights: [V] non-negative, not necessarily summing to 1.
    """
    joint = {}
    for first in range(len(first_weights)):
        for second in range(len(second_weights)):
            if first_weights[first] == 0 or second_weights[second] == 0:
                continue
            if first == second:
                probability = _both_win(first_weights, second_weights, first)
            else:
                probability = _each_wins(first_weights, second_weights, first, second)
            if probability > 0:
                joint[first, second] = probability
    return joint


def match_probability(first_weights: Sequence[Fraction], second_weights: Sequence[Fraction]) -> Fraction:
    """The probability that both races have one winner: what `keyed` accepts of a draft that shares the field."""
    return sum(
        (
            _both_win(first_weights, second_weights, token)
            for token in range(len(first_weights))
            if first_weights[token] > 0 and second_weights[token] > 0
        ),
        Fraction(0),
    )


def _both_win(first: Sequence[Fraction], second: Sequence[Fraction], winner: int) -> Fraction:
    pairs = zip(first, second, strict=True)
    return 1 / sum((max(a / first[winner], b / second[winner]) for a, b in pairs), Fraction(0))


def _each_wins(first: Sequence[Fraction], second: Sequence[Fraction], i: int, j: int) -> Fraction:
    """P(i wins the first race, j != i the second)."""
    if first[j] * second[i] >= first[i] * second[j]:
        return Fraction(0)
    scale = first[i] * second[j]
    low = first[j] / second[j]
    breakpoints = sorted({a / b for a, b in zip(first, second, strict=True) if b > 0 and a / b > low})
    if second[i] > 0:
        breakpoints = [ratio for ratio in breakpoints if ratio <= first[i] / second[i]]
    total = Fraction(0)
    for high in breakpoints:
        total += scale * (high - low) / (_rate(first, second, low) * _rate(first, second, high))
        low = high
    if second[i] == 0:
        # C(r) = constant + slope * r from the last breakpoint on, with slope = sum of b: the integral is 1 / (slope C).
        total += scale / (sum(second) * _rate(first, second, low))
    return total


def _rate(first: Sequence[Fraction], second: Sequence[Fraction], ratio: Fraction) -> Fraction:
    return sum((max(a, b * ratio) for a, b in zip(first, second, strict=True)), Fraction(0))
