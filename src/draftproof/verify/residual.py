"""The law of the token that replaces a rejected one: what the target has and the draft has not.

Formula: residual(x) = max(scale * p(x) - q(x), 0) on the target's support; p = target, q = draft; scale is 1 for
token-wise rejection and the prefix's remaining mass P_i for block verification.
Inputs: two laws, over vocabularies of any sizes: q is 0 outside its own, and only the target's tokens are listed.
Outputs: [K] unnormalised weights, the target's [K] token ids (None: 0..K-1), and their sum.
Noise: `draw_residual` consumes one field, of the key that it is given.
Exact because min(p, q) + max(p - q, 0) = p.
Edge cases: the sum is 0 when q covers scale * p. In exact arithmetic a rejection can't happen there; by rounding it
can, and then the token is drawn from the target's law: never token 0, never the last one.
Sources: Leviathan et al. 2211.17192, section 2.3 and appendix A; Sun et al. 2403.10444, section 4.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Law, Noise, Number, Weights
from draftproof.errors import DraftContractError


def residual(
    target_law: Law, draft_law: Law, target_scale: Number = 1
) -> tuple[Weights, NDArray[np.int64] | None, Number]:
    """(weights [K], token ids [K] or None, their sum). Raises DraftContractError on NaN in the draft's law."""
    target_weights, token_ids = target_law.weights()
    draft_weights = draft_law.at(token_ids, len(target_weights))
    weights = np.maximum(target_scale * target_weights - draft_weights, 0)
    mass = weights.sum()
    if isinstance(mass, np.generic):
        mass = mass.item()  # block adds it to 1 - P_i, which a float32 scalar would round
    if not 0 <= mass < math.inf:
        raise DraftContractError(f"the residual's mass is {mass}: the draft's law holds NaN or infinite values")
    return weights, token_ids, mass


def draw_residual(target_law: Law, draft_law: Law, noise: Noise, key: Key, target_scale: Number = 1) -> int:
    """A token id drawn from the residual by the field of `key`; from the target's law where the residual is empty."""
    weights, token_ids, mass = residual(target_law, draft_law, target_scale)
    if mass > 0:
        return noise.choice(key, weights, token_ids)
    return target_law.draw(noise, key)
