"""Mutants of the ratio test over siblings: several candidates for one position, tried in turn.

The right rule for siblings drawn without replacement: accept child x with min(1, p/q); after a rejection the target
becomes (p - q)+ normalised, and q loses x and is normalised. For independent siblings q stays as it is. The controls
are the production rules, `recursive` and `multi_round`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from draftproof.core import Dense, Key, Noise, Purpose, Siblings, Weights
from draftproof.verify.mutants.base import Mutant, constant, enumerated, production, ranked_token_ids
from draftproof.verify.proposals import Fixed, SampledTree
from draftproof.verify.tables import Context, LawTable

DrawSiblings: TypeAlias = Callable[[Weights, int, Noise], list[int]]
"""(draft's weights, position, noise) -> two candidates."""


def without_replacement(weights: Weights, position: int, noise: Noise) -> list[int]:
    """The second candidate is drawn from what the first has left."""
    first = noise.choice(Key(Purpose.DRAFT, position, 0), weights)
    left = weights.copy()
    left[first] = Fraction(0)
    return [first, noise.choice(Key(Purpose.DRAFT, position, 1), left)]


def independent(weights: Weights, position: int, noise: Noise) -> list[int]:
    """Two draws of one law; they may be equal."""
    return [noise.choice(Key(Purpose.DRAFT, position, index), weights) for index in range(2)]


def ranked(weights: Weights, position: int, noise: Noise) -> list[int]:
    """The two most probable tokens: no draw at all."""
    return ranked_token_ids(Dense(weights), len(weights))[:2]


@dataclass(frozen=True, slots=True)
class SiblingTwin:
    """One position, two candidates, ratio tests in turn.

    updates_target: after a rejection the target is the residual. drops_rejected: after a rejection the draft's law
    loses the rejected token. renormalises: and is normalised.
    """

    target: LawTable
    draft: LawTable
    siblings: DrawSiblings
    updates_target: bool = True
    drops_rejected: bool = True
    renormalises: bool = True

    def __call__(self, context: Context, noise: Noise) -> tuple[int, ...]:
        target_probs: Weights = np.array(self.target.probs(context), dtype=object)
        draft_probs: Weights = np.array(self.draft.probs(context), dtype=object)
        position = len(context)
        left = rest = target_probs
        for index, token_id in enumerate(self.siblings(draft_probs, position, noise)):
            if noise.coin(Key(Purpose.COIN, position, index), left[token_id], draft_probs[token_id]):
                return (token_id,)
            rest = np.maximum(left - draft_probs, 0)
            rest = rest / rest.sum() if rest.sum() > 0 else left
            if self.updates_target:
                left = rest
            if self.drops_rejected:
                draft_probs = draft_probs.copy()
                draft_probs[token_id] = Fraction(0)
                if self.renormalises:
                    draft_probs = draft_probs / draft_probs.sum()
        return (noise.choice(Key(Purpose.RESIDUAL, position, 1), rest),)


_TARGET: Final = constant("0.3 0.3 0.25 0.15")
_DRAFT: Final = constant("0.6 0.25 0.1 0.05")
_NEAR: Final = constant("0.51 0.49")


def _sampled(name: str, after: str, siblings: DrawSiblings, verifier: str, scheme: Siblings, **wrong: bool) -> Mutant:
    return Mutant(
        name,
        after,
        enumerated(SiblingTwin(_TARGET, _DRAFT, siblings, **wrong), _TARGET),
        production(verifier, _TARGET, SampledTree(_DRAFT, (2,), scheme)),
    )


def _ranked(name: str, after: str, target: LawTable, draft: LawTable) -> Mutant:
    return Mutant(
        name,
        after,
        enumerated(SiblingTwin(target, draft, ranked), target),
        production("recursive", target, SampledTree(draft, (2,), Siblings.WITHOUT_REPLACEMENT)),
    )


def _cumulative_sum(context: Context, noise: Noise) -> tuple[int, ...]:
    """Siblings [0, 0]: each adds its probability to the sum that the coin is held against."""
    target_probs: Weights = np.array(_DUPLICATED.probs(context), dtype=object)
    position = len(context)
    if noise.coin(Key(Purpose.COIN, position), target_probs[0] + target_probs[0]):
        return (0,)
    target_probs[0] = Fraction(0)
    return (noise.choice(Key(Purpose.RESIDUAL, position), target_probs),)


_DUPLICATED: Final = constant("0.3 0.5 0.2")

MUTANTS: Final = (
    _ranked("ranked candidates tested as samples, p = q", "T07: apple/ml-recurrent-drafter#6", _NEAR, _NEAR),
    _ranked(
        "ranked candidates tested as samples",
        "T07: ggml-org/llama.cpp examples/speculative (#5625)",
        _TARGET,
        _DRAFT,
    ),
    Mutant(
        "duplicate siblings summed",
        "T20a: cumulative-sum tree verification without de-duplication",
        enumerated(_cumulative_sum, _DUPLICATED),
        production("match", _DUPLICATED, Fixed((2,), (0, 0))),
    ),
    _sampled(
        "second sibling tested with a stale target",
        "T20b: multi-round rejection without the residual's update",
        without_replacement,
        "recursive",
        Siblings.WITHOUT_REPLACEMENT,
        updates_target=False,
    ),
    _sampled(
        "second sibling tested with a stale draft law",
        "T20b: sampling without replacement, law not renormalised",
        without_replacement,
        "recursive",
        Siblings.WITHOUT_REPLACEMENT,
        renormalises=False,
    ),
    _sampled(
        "independent siblings tested as without replacement",
        "T20c: multi-round rejection with the other scheme's update",
        independent,
        "multi_round",
        Siblings.INDEPENDENT,
        drops_rejected=True,
    ),
)
