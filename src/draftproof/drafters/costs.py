"""What a pass costs: seconds by width, learned on line, or read from a fixed table.

Model: log seconds(width) = level + shape[width], shape[1] = 0. The level, common to all widths, follows
the machine's load and the growing context; the shape says what width costs, and is learned more slowly.
The first NUM_FIRST measurements of a width count by their minimum, since the earliest passes pay for
warming up. Without plain passes level and shape can't be told apart, so one is asked for now and then.
A width that was never measured lies on the straight line between its measured neighbours, or on one of
slope FIRST_SLOPE beyond the widest of them: it is tried before it is known to be dear.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, isfinite, log
from typing import Final, Protocol

from draftproof.errors import ParameterError

FIRST_SLOPE: Final = 0.05
"""What one more token adds to a pass over one token, as a share, until it is measured."""
NUM_FIRST: Final = 3
PLAIN_EVERY: Final = 100
"""A pass over one token is asked for when the last was this many passes ago: 1 % of the passes at most."""
LEVEL_GAIN: Final = 0.2
SHAPE_GAIN: Final = 0.1
MAX_SURPRISE: Final = log(2.0)
"""A single measurement counts as at most this far from its prediction: other processes cause outliers."""
DRAFT_GAIN: Final = 0.1


class Costs(Protocol):
    """Seconds, or any unit that is the same for both."""

    @property
    def wants_plain_pass(self) -> bool:
        """Whether the next pass had better be a plain one, to be measured."""
        ...

    def of_pass(self, width: int) -> float:
        """One target pass over `width` tokens of a request."""
        ...

    def of_draft(self, num_tokens: int) -> float:
        """Drafting `num_tokens` tokens."""
        ...

    def observe_pass(self, width: int, seconds: float) -> None:
        """Take in one measured pass."""
        ...

    def observe_draft(self, num_tokens: int, seconds: float) -> None:
        """Take in one measured draft."""
        ...


class LearnedCosts:
    """Costs from measured times. Before the first one a pass over one token costs 1."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._shape: dict[int, float] = {1: 0.0}
        self._num_measured: dict[int, int] = {}
        self._num_since_plain = 0
        self._draft_token = 0.0
        self._has_draft_time = False

    @property
    def wants_plain_pass(self) -> bool:
        """True until NUM_FIRST plain passes were measured, and PLAIN_EVERY passes after the last one."""
        return self._num_measured.get(1, 0) < NUM_FIRST or self._num_since_plain >= PLAIN_EVERY

    def of_pass(self, width: int) -> float:
        """Seconds; see the module."""
        return exp((self._level or 0.0) + self._shape_at(width))

    def of_draft(self, num_tokens: int) -> float:
        """Proportional to the number of tokens."""
        return self._draft_token * num_tokens

    def observe_pass(self, width: int, seconds: float) -> None:
        """Move level and shape towards the measured time."""
        _check(width, seconds)
        num_measured = self._num_measured.get(width, 0)
        self._num_measured[width] = num_measured + 1
        self._num_since_plain = 0 if width == 1 else self._num_since_plain + 1
        if self._level is None:
            self._shape[width] = self._shape_at(width)
            self._level = log(seconds) - self._shape[width]
            return
        surprise = log(seconds) - self._level - self._shape_at(width)
        if num_measured < NUM_FIRST:
            self._set(width, surprise if num_measured == 0 else min(surprise, 0.0))
            return
        surprise = max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))
        self._level += LEVEL_GAIN * surprise
        if width == 1:
            self._level += SHAPE_GAIN * surprise
        else:
            self._shape[width] += SHAPE_GAIN * surprise

    def _set(self, width: int, surprise: float) -> None:
        """Correct one width and leave the seconds of the other measured ones as they are."""
        if width != 1:
            self._shape[width] = self._shape_at(width) + surprise
            return
        self._shape = {other: at if other == 1 else at - surprise for other, at in self._shape.items()}
        self._level = (self._level or 0.0) + surprise

    def observe_draft(self, num_tokens: int, seconds: float) -> None:
        """A moving mean of seconds per drafted token."""
        if num_tokens == 0:
            return
        _check(num_tokens, seconds, "num_drafted", zero_is_fine=True)
        per_token = seconds / num_tokens
        self._draft_token += (per_token - self._draft_token) * (DRAFT_GAIN if self._has_draft_time else 1.0)
        self._has_draft_time = True

    def _shape_at(self, width: int) -> float:
        if width in self._shape:
            return self._shape[width]
        widths = sorted(self._shape)
        right = bisect_left(widths, width)
        left = widths[right - 1]
        left_cost = exp(self._shape[left])
        if right == len(widths):
            return log(left_cost + FIRST_SLOPE * (width - left))
        right_cost = exp(self._shape[widths[right]])
        share = (width - left) / (widths[right] - left)
        return log(left_cost + share * (right_cost - left_cost))


class FixedCosts:
    """Costs from a table, so that lengths don't depend on a clock.

    passes: [max_tokens + 1] relative costs of passes over 1, 2, … tokens. draft_token: of one drafted token.
    Measured times are taken and not used: that is what the table is for.
    """

    def __init__(self, passes: Sequence[float], draft_token: float = 0.0) -> None:
        if not passes or not all(isfinite(cost) and cost > 0 for cost in passes):
            raise ParameterError("cost_table", list(passes), "positive finite costs of passes over 1, 2, … tokens")
        if not (isfinite(draft_token) and draft_token >= 0):
            raise ParameterError("draft_token_cost", draft_token, "a finite cost of 0 or more")
        self._passes = tuple(passes)
        self._draft_token = draft_token

    @property
    def wants_plain_pass(self) -> bool:
        """False: nothing is measured."""
        return False

    def of_pass(self, width: int) -> float:
        """The table's entry."""
        return self._passes[width - 1]

    def of_draft(self, num_tokens: int) -> float:
        """Proportional to the number of tokens."""
        return self._draft_token * num_tokens

    def observe_pass(self, width: int, seconds: float) -> None:
        """Not used."""

    def observe_draft(self, num_tokens: int, seconds: float) -> None:
        """Not used."""


def _check(count: int, seconds: float, field: str = "width", zero_is_fine: bool = False) -> None:
    if count < 1:
        raise ParameterError(field, count, "1 or more tokens")
    if not isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero_is_fine):
        raise ParameterError("seconds", seconds, "a finite time above 0")
