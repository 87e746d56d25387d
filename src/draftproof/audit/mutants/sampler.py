"""A speculative sampler over tables, many requests at once, with its parts open to replacement.

Target and draft are tables of rows by the last token, [V, V]. A pass drafts a chain of `num_draft` tokens for every
request, tests them (token-wise rejection), and emits accepted tokens and one more. With no part replaced the output's
law is the target's: the exact twin of every mutant here. Arrays: B requests, k = num_draft, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.scores import Floats

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Emission:
    """token_ids [R, L] of R requests, the last prompt token [R], and each token's offset in its pass [R, L]."""

    token_ids: Ids
    prompt_ids: Ids
    pass_offsets: Ids

    def contexts(self) -> Ids:
        """[R, L] the token before each token."""
        return np.concatenate([self.prompt_ids[:, None], self.token_ids[:, :-1]], axis=1)


@dataclass(frozen=True, slots=True)
class Drafted:
    """token_ids [B, k]; contexts [B, k + 1] the token before each row; laws [B, k, V] handed to the test."""

    token_ids: Ids
    contexts: Ids
    laws: Floats


class ExactSampler:
    """Token-wise rejection.

    name, after: as in reports; mutants name the bug that they repeat. instance: the tables on which it shows, see
    `instance_tables`.
    """

    name: ClassVar[str] = "exact"
    after: ClassVar[str] = "arXiv 2211.17192"
    num_draft: ClassVar[int] = 3
    instance: ClassVar[str] = "random"

    def __init__(self, target: Floats, draft: Floats) -> None:
        self.target, self.drafting = target, draft
        self.vocab_size = target.shape[1]

    def run(self, num_requests: int, length: int, seed: int) -> Emission:
        """`num_requests` outputs of `length` tokens; prompts are the tokens 0, 1, … in turn."""
        random = np.random.default_rng(seed)
        prompts = np.arange(num_requests) % self.vocab_size
        wide = length + self.num_draft + 1
        tokens = np.zeros((num_requests, wide), dtype=np.int64)
        offsets = np.zeros_like(tokens)
        done = np.zeros(num_requests, dtype=np.int64)
        state: dict[str, Any] = {}
        columns = np.arange(self.num_draft + 1)
        contexts = prompts.copy()
        num_passes = 0
        while True:
            active = np.flatnonzero(done < length)
            if not len(active):
                return Emission(tokens[:, :length], prompts, offsets[:, :length])
            state["rows"], state["pass"], state["done"] = active, num_passes, done[active]
            emitted, counts = self.step(contexts[active], random, state)
            rows, places = np.nonzero(columns[None, : emitted.shape[1]] < counts[:, None])
            at = done[active][rows] + places
            inside = at < wide
            tokens[active[rows][inside], at[inside]] = emitted[rows[inside], places[inside]]
            offsets[active[rows][inside], at[inside]] = places[inside]
            done[active] = np.minimum(done[active] + counts, wide)
            contexts[active] = emitted[np.arange(len(active)), counts - 1]
            num_passes += 1

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        """(emitted [B, k + 1], how many of them [B])."""
        drafted = self.draft(contexts, random, state)
        rows = self.rows(drafted)
        accepted = self.test(drafted, rows, random, state)
        num_accepted = np.where(accepted.all(1), accepted.shape[1], accepted.argmin(1))
        return self.commit(drafted, rows, num_accepted, random, state)

    def draft(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> Drafted:
        """Draws a chain, and hands over the very laws that it was drawn from."""
        before, tokens = [contexts], []
        for index in range(self.num_draft):
            law = self.drafting[before[-1]]
            tokens.append(self.draw_draft(law, random, index, state))
            before.append(tokens[-1])
        ids, places = np.stack(tokens, 1), np.stack(before, 1)
        return Drafted(ids, places, self.claimed(self.drafting[places[:, :-1]], ids))

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        """[B] tokens of node `index`."""
        return sample(law, random)

    def claimed(self, laws: Floats, token_ids: Ids) -> Floats:
        """The laws that the test is given."""
        return laws

    def rows(self, drafted: Drafted) -> Floats:
        """[B, k + 1, V] the target's rows."""
        return self.target[drafted.contexts]

    def test(
        self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]
    ) -> NDArray[np.bool_]:
        """[B, k] whether each drafted token passes its own test."""
        coins = random.random(drafted.token_ids.shape)
        return coins * at(drafted.laws, drafted.token_ids) < at(rows[:, :-1], drafted.token_ids)

    def commit(
        self, drafted: Drafted, rows: Floats, num_accepted: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> tuple[Ids, Ids]:
        """The accepted tokens and one more: from the residual, or from the last row."""
        batch = np.arange(len(num_accepted))
        is_full = num_accepted == drafted.token_ids.shape[1]
        node = np.minimum(num_accepted, drafted.token_ids.shape[1] - 1)
        replacement = self.recover(
            rows[batch, node], drafted.laws[batch, node], drafted.token_ids[batch, node], random, state
        )
        bonus = self.bonus(rows[:, -1], random, state)
        emitted = np.concatenate([drafted.token_ids, np.zeros((len(batch), 1), dtype=np.int64)], 1)
        emitted[batch, num_accepted] = np.where(is_full, bonus, replacement)
        return emitted, num_accepted + 1

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        """[B] tokens for the rejected ones."""
        return sample(residual(target, draft), random)

    def bonus(self, law: Floats, random: np.random.Generator, state: dict[str, Any]) -> Ids:
        """[B] tokens after a full acceptance."""
        return sample(law, random)


def sample(weights: Floats, random: np.random.Generator, uniforms: Floats | None = None) -> Ids:
    """[B] tokens in proportion to weights [B, V], by inverse transform."""
    ends = weights.cumsum(-1)
    at_ = (random.random(len(weights)) if uniforms is None else uniforms) * ends[:, -1]
    found: Ids = (ends <= at_[:, None]).sum(-1)
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(-1)
    inside: Ids = np.minimum(found, last)
    return inside


def residual(target: Floats, draft: Floats) -> Floats:
    """(p - q)+ [B, V], p where it is empty."""
    left = np.maximum(target - draft, 0.0)
    empty = left.sum(-1, keepdims=True) <= 0
    return np.where(empty, target, left)


def at(laws: Floats, token_ids: Ids) -> Floats:
    """[B, k] the probabilities of token_ids [B, k] in laws [B, k, V]."""
    return np.take_along_axis(laws, token_ids[..., None], -1)[..., 0]


def instance_tables(name: str) -> tuple[Floats, Floats]:
    """Target and draft rows [V, V]. random: 8 tokens, the draft between the target and other rows. far: other rows.
    tail: 64 tokens, steep. T08: the rows of the public report.
    """
    if name == "T08":
        return np.tile([0.10, 0.45, 0.45], (3, 1)), np.tile([0.70, 0.25, 0.05], (3, 1))
    random = np.random.default_rng({"random": 1, "far": 2, "tail": 3}[name])
    vocab_size = 64 if name == "tail" else 8
    spread = 0.15 if name == "tail" else 1.0
    target = random.dirichlet(np.full(vocab_size, spread), size=vocab_size)
    other = random.dirichlet(np.ones(vocab_size), size=vocab_size)
    share = 0.0 if name == "far" else 0.6
    return target, share * target + (1 - share) * other
