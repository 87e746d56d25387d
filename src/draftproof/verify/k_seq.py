"""`k_seq`: SpecTr's k-sequential selection among siblings that are independent draws of one law.

Formula: beta(rho) = sum of min(p / rho, q); share(rho) = 1 - (1 - beta)^K; rho in [1, K] with share <= rho * beta.
Children are tried in turn, each accepted iff u_k * rho * q(x_k) < p(x_k). After the last one the token is drawn from
p - min(p / rho, q) * share / beta, normalised. p = target, q = the drafter's law after the node, K its children.
Inputs: a draft (chain or tree) whose siblings were drawn independently; len(draft) + 1 target rows of [V]. Output: 1 to
depth + 1 tokens.
Noise: as `recursive`.
Exact because the children emit x with probability min(p/rho, q)(x) * sum over j < K of (1 - beta)^j, which is what the
residual leaves out; it is nowhere negative since share <= rho * beta. Any such rho is exact, the smallest accepts most.
Edge cases: K = 1 is `rejection`'s rule (rho = 1). beta = 0: no child can pass, the draw is from p. rho is found in
float64 by bisection, rounded up to a 2^-20th and checked in the arithmetic of the laws; K itself always holds.
Refused: as `multi_round`.
Source: Sun et al., SpecTr, 2310.15141, algorithm 2 (rho is its division factor).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Final, final

import numpy as np

from draftproof.core import Draft, Noise, Number, Siblings, Weights
from draftproof.verify.base import TargetRows, drawn_prob
from draftproof.verify.remaining import Remaining
from draftproof.verify.top_down import Choice, TopDown, coin_key, residual_key

STEPS: Final = 1 << 20
_NUM_HALVINGS: Final = 24


@final
class KSeq(TopDown):
    """k-sequential selection of independent siblings (SpecTr). Exact law, chains and trees."""

    name: ClassVar[str] = "k_seq"
    siblings: ClassVar[Siblings | None] = Siblings.INDEPENDENT

    def _choose(self, draft: Draft, rows: TargetRows, noise: Noise, node: int, nodes: Sequence[int]) -> Choice:
        target_law, draft_law = rows.after(node), draft.laws[nodes[0]]
        target_probs, token_ids = Remaining(target_law).weights
        draft_probs = draft_law.at(token_ids, len(target_probs))
        rho = division_factor(target_probs, draft_probs, len(nodes))
        for child in nodes:
            token_id = draft.token_ids[child]
            if noise.coin(coin_key(draft, child), target_law.prob(token_id), rho * drawn_prob(draft, child)):
                return Choice(token_id, child)
        covered = np.minimum(target_probs / rho, draft_probs)
        beta = _total(covered)
        left = target_probs
        if beta > 0:
            left = np.maximum(target_probs - covered * (_share(beta, len(nodes)) / beta), 0)
            left = left if _total(left) > 0 else target_probs
        return Choice(noise.choice(residual_key(draft, node), left, token_ids), None)


def division_factor(target_probs: Weights, draft_probs: Weights, num_children: int) -> Number:
    """rho: a number of [1, num_children] with 1 - (1 - beta)^K <= rho * beta, the smallest on a grid of 2^-20."""
    if num_children == 1:
        return 1
    p, q = target_probs.astype(np.float64), draft_probs.astype(np.float64)
    low, high = 1.0, float(num_children)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        beta = float(np.minimum(p / middle, q).sum())
        low, high = (low, middle) if _share(beta, num_children) <= middle * beta else (middle, high)
    is_exact = target_probs.dtype == object
    for steps in (math.floor(low * STEPS), math.ceil(high * STEPS), math.ceil(high * STEPS) + 1):
        rho = Fraction(steps, STEPS) if is_exact else steps / STEPS
        if 1 <= rho <= num_children:
            beta = _total(np.minimum(target_probs / rho, draft_probs))
            if _share(beta, num_children) <= rho * beta:
                return rho
    return num_children


def _share(beta: Number, num_children: int) -> Number:
    """The probability that one of the children passes."""
    return 1 - (1 - beta) ** num_children


def _total(weights: Weights) -> Number:
    total = weights.sum()
    return total.item() if isinstance(total, np.generic) else total
