"""Mutants of block verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftproof.core import Draft, Key, Noise, Number, Purpose
from draftproof.verify.exact import target_rows
from draftproof.verify.mutants.base import Mutant, constant, enumerated, markov, production
from draftproof.verify.proposals import Proposer, Sampled
from draftproof.verify.residual import draw_residual, residual
from draftproof.verify.tables import Context, LawTable, Table


@dataclass(frozen=True, slots=True)
class BlockTwin:
    """A step of block verification.

    caps_last: the last test uses P_n = min(1, P_{n-1} p/q); otherwise the product of all ratios, uncapped.
    scales_residual: the replacement comes from (P_i p - q)+; otherwise from the token rule's (p - q)+.
    scales_threshold: the thresholds come from P_i; otherwise from min(1, p/q) of the last token alone.
    """

    target: Table
    drafter: Proposer
    caps_last: bool = True
    scales_residual: bool = True
    scales_threshold: bool = True

    def __call__(self, context: Context, noise: Noise) -> tuple[int, ...]:
        draft = self.drafter(context, noise)
        laws = target_rows(self.target, context, draft)
        masses, product = self._masses(draft, [laws[node].prob(token) for node, token in enumerate(draft.token_ids)])
        length = len(draft)
        while length > 0:
            key, mass = Key(Purpose.COIN, draft.start, length - 1), masses[length]
            if length == len(draft):
                passed = noise.coin(key, mass if self.caps_last else product)
            else:
                _, _, left = residual(laws[length], draft.laws[length], mass)
                whole = left + 1 - mass
                passed = whole == 0 or noise.coin(key, left, whole)
            if passed:
                break
            length -= 1
        if length == len(draft):
            return (*draft.token_ids, laws[-1].draw(noise, Key(Purpose.BONUS, draft.start)))
        key = Key(Purpose.RESIDUAL, draft.start, length)
        scale = masses[length] if self.scales_residual else 1
        return (*draft.token_ids[:length], draw_residual(laws[length], draft.laws[length], noise, key, scale))

    def _masses(self, draft: Draft, target_probs: list[Number]) -> tuple[list[Number], Number]:
        masses: list[Number] = [1]
        product: Number = 1
        for node, target_prob in enumerate(target_probs):
            ratio = target_prob / draft.laws[node].prob(draft.token_ids[node])
            product = product * ratio
            masses.append(min(1, masses[-1] * ratio if self.scales_threshold else ratio))
        return masses, product


def _mutant(name: str, after: str, target: LawTable, draft: LawTable, **wrong: bool) -> Mutant:
    drafter = Sampled(draft, (1, 1))
    return Mutant(
        name,
        after,
        enumerated(BlockTwin(target, drafter, **wrong), target),
        production("block", target, drafter),
    )


_TARGET: Final = markov(("0.5 0.3 0.2", "0.2 0.5 0.3", "0.4 0.4 0.2"))
_DRAFT: Final = markov(("0.2 0.3 0.5", "0.5 0.25 0.25", "0.05 0.10 0.85"))

MUTANTS: Final = (
    _mutant(
        "last test uncapped",
        "HSD's public code (2601.05724)",
        constant("1/3 2/3"),
        constant("2/3 1/3"),
        caps_last=False,
    ),
    _mutant(
        "block test with the token rule's residual",
        "vllm-project/vllm-ascend#7807",
        _TARGET,
        _DRAFT,
        scales_residual=False,
    ),
    _mutant(
        "block test with the token's own ratio",
        "vllm-project/vllm-ascend#7807",
        _TARGET,
        _DRAFT,
        scales_threshold=False,
    ),
)
