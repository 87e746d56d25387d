"""`greedy`: `keyed` at temperature 0, where every target law is a point mass and no noise is needed.

Formula: y_t = the token that holds all of p_t. Accept the child with token y_t; emit y_t either way.
Inputs: a draft (chain or tree, any law, any noise); len(draft) + 1 target rows, each with all its mass on one token
(the sampler chain makes such rows at temperature 0). Output: 1 to depth + 1 tokens.
Noise: none.
Exact because y_t is a function of the target's law alone: the emitted tokens are plain greedy decoding's.
Edge cases: a row with mass on two tokens or more is refused (ParameterError): its argmax is not its law. Ties at the
top are the sampler chain's business, which gives the point mass to the lowest id.
Source: Leviathan et al. 2211.17192, section 2.3 (the argmax case); the same walk as `keyed`.
"""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np

from draftproof.core import Draft, Law, Noise, PointMass, Verdict
from draftproof.errors import ParameterError
from draftproof.verify.base import Guarantee, TargetRows, Verifier
from draftproof.verify.walk import num_nodes_agreeing, walk


@final
class Greedy(Verifier):
    """Accept while the drafted token is the target's argmax. Replay at temperature 0, chains and trees, any draft."""

    name: ClassVar[str] = "greedy"
    guarantee: ClassVar[Guarantee] = "replay"
    needs_draft_law: ClassVar[bool] = False
    supports_trees: ClassVar[bool] = True

    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        return walk(draft, rows, _only_token)

    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        return num_nodes_agreeing(draft, rows, _only_token)


def _only_token(law: Law, node: int) -> int:
    if not isinstance(law, PointMass):
        num_possible = np.count_nonzero(law.weights()[0])
        if num_possible != 1:
            raise ParameterError(
                "verifier",
                f"greedy, with a target law of {num_possible} possible tokens",
                "used with temperature 0 only",
                "set temperature=0, or use the verifier 'keyed'",
            )
    return law.argmax()
