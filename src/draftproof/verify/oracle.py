"""An oracle that replays every random path of a program written against `Noise`, in rational arithmetic.

Rule: each key names one uniform number u in [0, 1), known so far to lie in an interval. `coin` asks whether
u < numerator / denominator, `choice` which token's slice of the cumulative weights holds u; where the interval
decides, that is the answer, and where it doesn't, the path splits and the interval shrinks. So a key that is asked
again repeats its answer, also under other weights, and two keys are independent.
Inputs: a program, run once for each path. Outputs: (probability, result) for each path; the probabilities sum to 1.
Exact because the splits' probabilities are ratios of interval lengths in Fractions; floats are read as the rationals
that they are.
Edge case: weights need not sum to 1; a token of weight 0 has an empty slice.
Source: the queue of unexplored branches is ordinary exhaustive search by replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Number, Weights
from draftproof.errors import LawError

Result = TypeVar("Result")
Interval: TypeAlias = tuple[Fraction, Fraction]
"""[low, high) of a key's uniform number."""

ZERO, ONE = Fraction(0), Fraction(1)
WHOLE: Interval = (ZERO, ONE)


@dataclass(frozen=True, slots=True)
class Path(Generic[Result]):
    """One random path: its probability, what the program returned, and where it left each key that it asked."""

    probability: Fraction
    result: Result
    intervals: dict[Key, Interval] = field(repr=False)


class _Answer(NamedTuple):
    """What one call was told, and what was known after it."""

    key: Key
    answer: int
    interval: Interval
    probability: Fraction


@final
class EnumeratingOracle:
    """Implements `Noise` by enumeration; see the module.

    given: what earlier calls have learned about keys; keys not in it are untouched.
    asked: the keys that the paths so far have asked.
    """

    __slots__ = ("_given", "_intervals", "_known_slices", "_num_calls", "_pending", "_probability", "_trace", "asked")

    def __init__(self, given: Mapping[Key, Interval] | None = None) -> None:
        self._given = {} if given is None else given
        self.asked: set[Key] = set()
        self._pending: list[list[_Answer]] = []
        self._known_slices: dict[tuple[int, int], tuple[list[tuple[int, Interval]], object, object]] = {}
        self._begin([])

    def paths(self, program: Callable[[EnumeratingOracle], Result]) -> Iterator[Path[Result]]:
        """Runs `program`, which must be a function of the oracle's answers alone, once for each random path."""
        self._pending = [[]]
        while self._pending:
            self._begin(self._pending.pop())
            result = program(self)
            yield Path(self._probability, result, self._intervals)

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        """True with probability min(1, numerator / denominator), and where u < numerator / denominator."""
        if self._num_calls < len(self._trace):
            return self._repeat(key) == 1
        low, high = self._interval(key)
        limit, scale = as_fraction(numerator), as_fraction(denominator)
        if scale == 0:
            return self._split(key, [(int(limit > 0), (low, high))]) == 1
        threshold = limit / scale
        if high <= threshold:
            return self._split(key, [(1, (low, high))]) == 1
        if threshold <= low:
            return self._split(key, [(0, (low, high))]) == 1
        return self._split(key, [(1, (low, threshold)), (0, (threshold, high))]) == 1

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[np.int64] | None = None) -> int:
        """The token whose slice of the cumulative weights holds u; raises LawError on weights that are no law."""
        if self._num_calls < len(self._trace):
            return self._repeat(key)
        whole = self._slices(weights, token_ids)
        low, high = interval = self._interval(key)
        if interval is WHOLE:
            return self._split(key, whole)
        parts = [
            (token_id, (max(start, low), min(end, high)))
            for token_id, (start, end) in whole
            if start < high and low < end
        ]
        return self._split(key, parts)

    def _slices(self, weights: Weights, token_ids: NDArray[np.int64] | None) -> list[tuple[int, Interval]]:
        """Each possible token's slice of [0, 1)."""
        seen = self._known_slices.get((id(weights), id(token_ids)))
        if seen is not None:
            return seen[0]
        values = [as_fraction(weight) for weight in weights]
        total = sum(values)
        if total <= 0 or min(values) < 0:
            raise LawError(f"no token can be drawn from the weights {[str(value) for value in values]}")
        slices: list[tuple[int, Interval]] = []
        end = ZERO
        for index, value in enumerate(values):
            if value:
                start, end = end, end + value / total
                slices.append((index if token_ids is None else int(token_ids[index]), (start, end)))
        # The arrays are kept with their slices: an id is one array's only while that array lives.
        self._known_slices[id(weights), id(token_ids)] = (slices, weights, token_ids)
        return slices

    def _begin(self, trace: list[_Answer]) -> None:
        self._trace = trace
        self._num_calls = 0
        self._probability = ONE
        self._intervals: dict[Key, Interval] = {}

    def _interval(self, key: Key) -> Interval:
        self.asked.add(key)
        known = self._intervals.get(key)
        return self._given.get(key, WHOLE) if known is None else known

    def _repeat(self, key: Key) -> int:
        """The answer that an earlier path got to the same call."""
        answer = self._trace[self._num_calls]
        if answer.key != key:
            raise RuntimeError(f"the program asked {key} where it asked {answer.key} before: it is not deterministic")
        return self._follow(answer)

    def _split(self, key: Key, parts: list[tuple[int, Interval]]) -> int:
        """The answer on this path; paths with the other answers are queued."""
        if len(parts) == 1:
            answers = [_Answer(key, *parts[0], self._probability)]
        else:
            scale = self._probability / (parts[-1][1][1] - parts[0][1][0])
            answers = [_Answer(key, token_id, part, scale * (part[1] - part[0])) for token_id, part in parts]
            self._pending.extend([*self._trace, other] for other in reversed(answers[1:]))
        self._trace.append(answers[0])
        return self._follow(answers[0])

    def _follow(self, answer: _Answer) -> int:
        self._num_calls += 1
        self._probability = answer.probability
        self._intervals[answer.key] = answer.interval
        return answer.answer


def as_fraction(number: Number) -> Fraction:
    """The rational that a Fraction, an int, a Python or numpy float is. Raises LawError on NaN and infinity."""
    if isinstance(number, Fraction):
        return number
    try:
        return Fraction(number.item() if isinstance(number, np.generic) else number)
    except (ValueError, OverflowError):
        raise LawError(f"{number} is no weight; weights are finite") from None
