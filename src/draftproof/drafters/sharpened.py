"""A drafter's law raised to a power: q^power, normalised.

One transformation with two uses. Under a ratio test the tokens are drawn from the sharpened law, which is then the one
that the test divides by. Under `keyed` argmax(log q + zeta * G) is argmax(log q / zeta + G): a draw from q^(1/zeta)
with the target's own field, zeta = 0 being the argmax of q.
Edge cases: power infinity is the point mass on the largest, the lowest id on ties; a point mass stays as it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Dense, Law, PointMass, Sparse
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig
    from draftproof.verify.base import Verifier


def sharpened(law: Law, power: float) -> Law:
    """The law in proportion to q^power, on the same tokens. power: above 0, infinity included."""
    if not power > 0:
        raise ParameterError("power", power, "a number above 0, or infinity")
    if power == 1.0 or isinstance(law, PointMass):
        return law
    if math.isinf(power):
        return PointMass(law.argmax())
    weights, token_ids = law.weights()
    raised = _raised(weights, power)
    return Dense(raised) if token_ids is None else Sparse(token_ids, raised)


def chain_power(config: SpeculativeConfig, verifier: Verifier) -> float:
    """The power for a request's chains: 1 / zeta under a replay verifier that shares its noise, else the sharpness.

    With it a draw with the target's field is argmax(log q + zeta * G).
    """
    if verifier.guarantee == "exact-law" or not config.share_target_noise:
        return 1.0 if config.sharpness is None else config.sharpness
    if config.noise_weight is None:
        return 1.0
    return math.inf if config.noise_weight == 0 else 1.0 / config.noise_weight


def _raised(weights: NDArray[Any], power: float) -> NDArray[Any]:
    """[K] normalised powers, in the weights' type: a power is taken of each weight's share of the largest."""
    shares = weights / weights.max()
    raised = shares * shares if power == 2.0 else np.sqrt(shares) if power == 0.5 else shares**power
    total = raised.sum(dtype=np.float64)
    normalised: NDArray[Any] = (raised / total).astype(weights.dtype, copy=False)
    return normalised
