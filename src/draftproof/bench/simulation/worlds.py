"""Targets and drafters for simulations: Markov chains of order 1 over a small vocabulary, and their sequences.

A world has a target's rows P and a drafter's Q, [V, V] each. `diffuse`: every row's logits are off by independent
noise. `bimodal`: a share of the states is nearly certain and drafted rightly, the others are open and drafted badly,
as in text that is mostly certain and sometimes not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
NUM_TOKENS = 50


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """name. target, draft: [V, V] rows that sum to 1."""

    name: str
    target: Rows
    draft: Rows

    @property
    def total_variation(self) -> float:
        """Between the two rows, under the target's stationary law."""
        weights = np.linalg.matrix_power(self.target, 200)[0]
        return float(weights @ (np.abs(self.target - self.draft).sum(axis=1) / 2))


def softmax(scores: Rows, axis: int = -1) -> Rows:
    shifted = np.exp(scores - scores.max(axis=axis, keepdims=True))
    rows: Rows = shifted / shifted.sum(axis=axis, keepdims=True)
    return rows


def diffuse(name: str, seed: int, *, spread: float, error: float, temperature: float = 1.0) -> World:
    """Target logits of standard deviation `spread`, the drafter's off by `error`, both over `temperature`."""
    source = np.random.Generator(np.random.PCG64(seed))
    logits = spread * source.standard_normal((NUM_TOKENS, NUM_TOKENS))
    wrong = logits + error * source.standard_normal((NUM_TOKENS, NUM_TOKENS))
    return World(name, softmax(logits / temperature), softmax(wrong / temperature))


def bimodal(
    name: str, seed: int, *, share_certain: float, certain_error: float = 0.5, open_error: float = 1.6
) -> World:
    """A token in `share_certain` of the text leaves its state nearly certain of the next one.

    A certain state's favourite is a certain state of a higher number or an open one, so that no cycle of certain states
    holds the text for ever.
    """
    source = np.random.Generator(np.random.PCG64(seed))
    num_certain = NUM_TOKENS // 2
    logits = 1.6 * source.standard_normal((NUM_TOKENS, NUM_TOKENS))
    # Open rows lead to certain states by their share of the tokens.
    logits[:, :num_certain] += np.log(share_certain / (1 - share_certain))
    favourites = np.empty(num_certain, dtype=np.int64)
    for state in range(num_certain):
        later = np.arange(state + 1, num_certain)
        goes_on = len(later) > 0 and source.random() < share_certain
        favourites[state] = source.choice(later) if goes_on else source.integers(num_certain, NUM_TOKENS)
    rows = np.arange(num_certain)
    logits[rows, favourites] = logits[rows].max(axis=1) + 6.0
    errors = np.where(np.arange(NUM_TOKENS) < num_certain, certain_error, open_error)
    wrong = logits + errors[:, None] * source.standard_normal((NUM_TOKENS, NUM_TOKENS))
    return World(name, softmax(logits), softmax(wrong))


@dataclass(slots=True, eq=False)
class Sequences:
    """B sequences of the target, decoded once with noise that persists.

    gumbel: [B, L, V] the field of each position; token_ids: [B, L] the target's own tokens with it, position 0 given.
    Rules that compare with the target's token read both; rules that draw for themselves use `source`.
    """

    world: World
    gumbel: NDArray[np.float32]
    token_ids: NDArray[np.int64]
    source: np.random.Generator

    @property
    def num_sequences(self) -> int:
        return len(self.token_ids)


def sequences(world: World, num_sequences: int, length: int, seed: int) -> Sequences:
    """`num_sequences` sequences of `length` tokens."""
    source = np.random.Generator(np.random.PCG64(seed))
    uniforms = source.random((num_sequences, length, NUM_TOKENS), dtype=np.float32)
    gumbel = -np.log(-np.log1p(-np.clip(uniforms, 1e-7, 1 - 1e-7)))
    log_target = np.log(world.target)
    token_ids = np.empty((num_sequences, length), dtype=np.int64)
    token_ids[:, 0] = source.integers(0, NUM_TOKENS, num_sequences)
    for position in range(1, length):
        scores = log_target[token_ids[:, position - 1]] + gumbel[:, position]
        token_ids[:, position] = scores.argmax(axis=1)
    return Sequences(world, gumbel, token_ids, source)


def draw(rows: Rows, source: np.random.Generator) -> NDArray[np.int64]:
    """One token of each row [..., V], not necessarily normalised."""
    ends = rows.cumsum(axis=-1)
    marks = source.random((*rows.shape[:-1], 1)) * ends[..., -1:]
    found: NDArray[np.int64] = np.minimum((ends <= marks).sum(axis=-1), rows.shape[-1] - 1)
    return found
