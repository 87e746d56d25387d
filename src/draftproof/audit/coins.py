"""Coins that a foreign function may compare, and that an enumeration can split: uniform numbers without a value.

A `SymbolicUniform` stands for a u + b with u in [0, 1). Comparisons with numbers are answered by the oracle, which
splits the path where both answers are possible, so a rule that was written for floats is enumerated as it is. What
needs u's value (rounding, float(u), the sum of two coins) is refused: such a rule is audited by sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn

from draftproof import ParameterError
from draftproof.audit.engine import EngineError
from draftproof.verify.oracle import as_fraction


class OracleKey(NamedTuple):
    """A key of the oracle's for noise that is none of draftproof's own purposes."""

    purpose: str
    position: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which a key has no use for


class SymbolicUniform:
    """scale * u + shift, u the uniform number that `oracle` keeps under `key`."""

    __slots__ = ("_key", "_oracle", "_scale", "_shift")
    __array_priority__ = 1000.0

    def __init__(self, oracle: Any, key: Any, scale: Fraction = Fraction(1), shift: Fraction = Fraction(0)) -> None:
        self._oracle, self._key, self._scale, self._shift = oracle, key, scale, shift

    def _with(self, scale: Fraction, shift: Fraction) -> SymbolicUniform:
        return SymbolicUniform(self._oracle, self._key, scale, shift)

    def __mul__(self, other: Any) -> SymbolicUniform:
        factor = _number(other)
        return self._with(self._scale * factor, self._shift * factor)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SymbolicUniform:
        return self * (1 / _number(other))

    def __add__(self, other: Any) -> SymbolicUniform:
        return self._with(self._scale, self._shift + _number(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> SymbolicUniform:
        return self + -_number(other)

    def __rsub__(self, other: Any) -> SymbolicUniform:
        return self._with(-self._scale, _number(other) - self._shift)

    def __neg__(self) -> SymbolicUniform:
        return self._with(-self._scale, -self._shift)

    def __lt__(self, other: Any) -> bool:
        limit = _number(other) - self._shift
        if self._scale == 0:
            return bool(limit > 0)
        below = bool(self._oracle.coin(self._key, max(limit / self._scale, Fraction(0))))
        return below if self._scale > 0 else not below

    # One single number has probability 0: < and <= agree, and so do > and >=. Their ends are probed apart.
    __le__ = __lt__

    def __gt__(self, other: Any) -> bool:
        return not self < other

    __ge__ = __gt__

    def _no_value(self) -> NoReturn:
        raise EngineError("the rule takes a coin's value; audit it by sampling (coins='generator')")

    def __float__(self) -> float:
        self._no_value()

    def __int__(self) -> int:
        self._no_value()


class SymbolicCoins:
    """Coins by index, as many as the rule asks for; an index asked twice is one coin."""

    def __init__(self, oracle: Any, position: int) -> None:
        self._oracle, self._position = oracle, position

    def __getitem__(self, index: int) -> SymbolicUniform:
        if not isinstance(index, int) or index < 0:
            raise ParameterError("coins", index, "asked for by an index of 0 or more")
        return SymbolicUniform(self._oracle, OracleKey("coin", self._position, index))

    def __iter__(self) -> Iterator[SymbolicUniform]:
        index = 0
        while True:
            yield self[index]
            index += 1


class ConstantCoins:
    """Every coin is the same number: the ends of a generator's range."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __getitem__(self, index: int) -> float:
        return self._value

    def __iter__(self) -> Iterator[float]:
        while True:
            yield self._value


def _number(value: Any) -> Fraction:
    if isinstance(value, SymbolicUniform):
        raise EngineError("the rule combines two coins; audit it by sampling (coins='generator')")
    return as_fraction(value)
