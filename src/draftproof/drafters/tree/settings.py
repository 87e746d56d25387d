"""How a tree looks at the noise, and how sharply; and what may be done with a request's parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from draftproof.config import MAX_NOISE_WEIGHT, MAX_SHARPNESS
from draftproof.drafters.base import DraftRequest
from draftproof.errors import ParameterError
from draftproof.sampling.row_params import RowParams


@dataclass(frozen=True, slots=True)
class Shares:
    """noise_weight: zeta in [0, 3]; above it a field's power leaves float32. sharpness: in (0, 8]; below 1 trees are
    wider, above 1 deeper.
    """

    noise_weight: float = 1.0
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise_weight <= MAX_NOISE_WEIGHT:
            raise ParameterError("noise_weight", self.noise_weight, f"a number, 0 to {MAX_NOISE_WEIGHT:g}")
        if not 0.0 < self.sharpness <= MAX_SHARPNESS:
            raise ParameterError("sharpness", self.sharpness, f"a number above 0, up to {MAX_SHARPNESS:g}")


def may_look(request: DraftRequest) -> bool:
    """Whether the request's draft may look at the target's noise, and gains by it: not at temperature 0."""
    return request.share_target_field and request.row_params.temperature > 0


def at_temperature_one(request: DraftRequest) -> DraftRequest:
    """The request, at temperature 1 if it is greedy: a point mass knows no second best."""
    if request.row_params.temperature > 0:
        return request
    params = _warmed.get(request.row_params)
    if params is None:
        params = _warmed[request.row_params] = replace(request.row_params, temperature=1.0)
    return replace(request, row_params=params)


_warmed: WeakKeyDictionary[RowParams, RowParams] = WeakKeyDictionary()
