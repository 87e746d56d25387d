"""`rejection` with its parts open to replacement, and noise whose keys are redirected.

With no part replaced the twin gives the production verifier's law (a test holds it to that), so that a mutant differs
from it in the named part alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from numpy.typing import NDArray

from draftproof.core import Draft, Key, Law, Noise, Number, Purpose, Weights
from draftproof.verify.exact import Step, target_rows
from draftproof.verify.proposals import Proposer
from draftproof.verify.residual import draw_residual
from draftproof.verify.tables import Context, Table

Accept: TypeAlias = Callable[[Noise, Key, Number, Number], bool]
"""(noise, coin's key, target's probability, draft's probability) -> whether the drafted token is kept."""
Recover: TypeAlias = Callable[[Law, Law, int, Noise, Key], int]
"""(target's law, draft's law, rejected token, noise, key) -> the token that replaces it."""
DrawBonus: TypeAlias = Callable[[Law, Noise, Key], int]
"""(target's law, noise, key) -> the token after a full acceptance."""


def accept_by_ratio(noise: Noise, key: Key, target_prob: Number, draft_prob: Number) -> bool:
    """The right test."""
    return noise.coin(key, target_prob, draft_prob)


def recover_from_residual(target_law: Law, draft_law: Law, rejected_id: int, noise: Noise, key: Key) -> int:
    """The right replacement."""
    return draw_residual(target_law, draft_law, noise, key)


def draw_bonus(law: Law, noise: Noise, key: Key) -> int:
    """The right bonus token."""
    return law.draw(noise, key)


@dataclass(frozen=True, slots=True)
class RejectionTwin:
    """A step of token-wise rejection with replaceable parts."""

    target: Table
    drafter: Proposer
    accept: Accept = accept_by_ratio
    recover: Recover = recover_from_residual
    bonus: DrawBonus = draw_bonus
    rows: Callable[[Table, Context, Draft], list[Law]] = target_rows

    def __call__(self, context: Context, noise: Noise) -> tuple[int, ...]:
        draft = self.drafter(context, noise)
        laws = self.rows(self.target, context, draft)
        for node, drafted_id in enumerate(draft.token_ids):
            coin = Key(Purpose.COIN, draft.start, node)
            if not self.accept(noise, coin, laws[node].prob(drafted_id), draft.laws[node].prob(drafted_id)):
                key = Key(Purpose.RESIDUAL, draft.start, node)
                return (
                    *draft.token_ids[:node],
                    self.recover(laws[node], draft.laws[node], drafted_id, noise, key),
                )
        return (*draft.token_ids, self.bonus(laws[-1], noise, Key(Purpose.BONUS, draft.start)))


@dataclass(frozen=True, slots=True)
class Redirected:
    """Noise that answers one key with another one's noise."""

    noise: Noise
    redirect: Callable[[Key], Key]

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        return self.noise.coin(self.redirect(key), numerator, denominator)

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[Any] | None = None) -> int:
        return self.noise.choice(self.redirect(key), weights, token_ids)


def redirected(step: Step, redirect: Callable[[Key], Key]) -> Step:
    """The step, run on redirected noise."""
    return lambda context, noise: step(context, Redirected(noise, redirect))
