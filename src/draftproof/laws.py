"""Laws over token ids, and what makes one of another: the closed set PointMass, Dense, Sparse, Without.

Weights are one-dimensional numpy arrays, of floats in production and of `fractions.Fraction` (dtype object) in proofs
by enumeration; nothing here asks which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.keys import Key, Noise

Weights: TypeAlias = NDArray[Any]
"""[V] or [K] non-negative numbers: floats, or Fractions in an object array."""
Number: TypeAlias = Any
"""A float in production, a Fraction in proofs."""


class Law(ABC):
    """A probability law over token ids. Closed set: PointMass, Dense, Sparse, Without."""

    __slots__ = ()

    @abstractmethod
    def prob(self, token_id: int) -> Number:
        """The probability of `token_id`; 0 for an id outside the law, whatever the id."""

    @abstractmethod
    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        """([K] probabilities, [K] ascending token ids); ids None means 0..K-1."""

    @abstractmethod
    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        """[size] probabilities at `token_ids` (None: 0..size-1), zeros outside."""

    def draw(self, noise: Noise, key: Key) -> int:
        """A token id drawn from this law by the field of `key`."""
        values, token_ids = self.weights()
        return noise.choice(key, values, token_ids)

    def argmax(self) -> int:
        """The most probable token id, the lowest one on ties."""
        values, token_ids = self.weights()
        best = int(np.argmax(values))
        return best if token_ids is None else int(token_ids[best])


@final
@dataclass(frozen=True, slots=True)
class PointMass(Law):
    """All mass on one token: argmax, n-gram and suffix drafts, T = 0."""

    token_id: int

    def prob(self, token_id: int) -> Number:
        return 1 if token_id == self.token_id else 0

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        return np.ones(1, dtype=np.int64), np.array([self.token_id], dtype=np.int64)

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        ids = np.arange(size) if token_ids is None else token_ids
        return (ids == self.token_id).astype(np.int64)

    def draw(self, noise: Noise, key: Key) -> int:
        return self.token_id

    def argmax(self) -> int:
        return self.token_id


@final
@dataclass(frozen=True, slots=True, eq=False)
class Dense(Law):
    """`probs` [V]: one probability per token id."""

    probs: Weights

    def __post_init__(self) -> None:
        if self.probs.ndim != 1 or self.probs.shape[0] == 0:
            raise ParameterError("probs", f"array of shape {self.probs.shape}", "one row of at least one token")

    def prob(self, token_id: int) -> Number:
        if not 0 <= token_id < self.probs.shape[0]:
            return 0
        return _scalar(self.probs[token_id])

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        return self.probs, None

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        own = self.probs.shape[0]
        if token_ids is None and size <= own:
            return self.probs[:size]
        ids = np.arange(size) if token_ids is None else token_ids
        inside = ids < own
        found = np.zeros(len(ids), dtype=self.probs.dtype)
        found[inside] = self.probs[ids[inside]]
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sparse(Law):
    """`probs` [K] on strictly ascending `token_ids` [K]; every other token has probability 0."""

    token_ids: NDArray[np.int64]
    probs: Weights

    def __post_init__(self) -> None:
        if self.token_ids.ndim != 1 or self.token_ids.shape != self.probs.shape or not len(self.token_ids):
            raise ParameterError(
                "token_ids, probs",
                f"shapes {self.token_ids.shape} and {self.probs.shape}",
                "two rows of one length, at least 1",
            )
        if self.token_ids[0] < 0 or not (self.token_ids[1:] > self.token_ids[:-1]).all():
            raise ParameterError("token_ids", self.token_ids.tolist(), "strictly ascending and not negative")

    def prob(self, token_id: int) -> Number:
        where = int(np.searchsorted(self.token_ids, token_id))
        if where == len(self.token_ids) or self.token_ids[where] != token_id:
            return 0
        return _scalar(self.probs[where])

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        return self.probs, self.token_ids

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        if token_ids is None:
            found = np.zeros(size, dtype=self.probs.dtype)
            inside = self.token_ids < size
            found[self.token_ids[inside]] = self.probs[inside]
            return found
        where = np.minimum(np.searchsorted(self.token_ids, token_ids), len(self.token_ids) - 1)
        return np.where(self.token_ids[where] == token_ids, self.probs[where], 0)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Without(Law):
    """`base` without `excluded_ids`, normalised: what a sibling is drawn from if it must differ from those before it.

    excluded_ids: the siblings before it, in the order in which they were drawn. Raises ParameterError if no token is
    left. The arrays are made when they are asked for, since most siblings are never tested.
    """

    base: Dense | Sparse
    excluded_ids: tuple[int, ...]
    _total: Number = field(init=False, repr=False)

    def __post_init__(self) -> None:
        total = _scalar(self._left()[0].sum())
        if not total > 0:
            raise ParameterError("excluded_ids", self.excluded_ids, "ids that leave a token of positive probability")
        object.__setattr__(self, "_total", total)

    def prob(self, token_id: int) -> Number:
        return 0 if token_id in self.excluded_ids else self.base.prob(token_id) / self._total

    def weights(self) -> tuple[Weights, NDArray[np.int64] | None]:
        weights, token_ids = self._left()
        return weights / self._total, token_ids

    def at(self, token_ids: NDArray[np.int64] | None, size: int) -> Weights | Number:
        found = self.base.at(token_ids, size) / self._total
        excluded = np.array(self.excluded_ids, dtype=np.int64)
        if token_ids is None:
            found[excluded[excluded < size]] = 0
        else:
            found[np.isin(token_ids, excluded)] = 0
        return found

    def _left(self) -> tuple[Weights, NDArray[np.int64] | None]:
        weights, token_ids = self.base.weights()
        weights = weights.copy()
        excluded = np.array(self.excluded_ids, dtype=np.int64)
        weights[excluded if token_ids is None else np.isin(token_ids, excluded)] = 0
        return weights, token_ids


def _scalar(value: Any) -> Number:
    """A Python float or Fraction: mixed-precision scalar arithmetic would round in float32."""
    return value.item() if isinstance(value, np.generic) else value
