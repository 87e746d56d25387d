"""What a pass costs: seconds by the tokens of its forward, learned on line; `fixed_costs` reads them from a table.

Model: log seconds(tokens) = level + shape[tokens], shape[1] = 0. The shape says what width costs, and is learned
slowly. The level, common to all widths, follows the machine; there is one for each octave of cached entries, so that
long and short contexts by turns don't blur it. `tokens` counts those of all requests that share the forward (`Load`):
what a request's draft costs is what it adds to them.
The first NUM_FIRST measurements of a width count by their median, of two by the lesser: the earliest passes pay for
warming up, and a minimum would be a lucky one. After them a width's shape is their mean and that of all further ones,
with forgetting over 1 / LEAST_GAIN: where other processes make times scatter, what a few tokens more cost is small
beside it. A width that is measured again and again moves the level alone: against itself nothing can be told, and such
measurements are no knowledge of its shape: of a run of them the first counts. So without plain passes level and shape
can't be told apart, and one is asked for now and then; what it corrects is the plain pass, not what others take.
What passes are taken to cost from that, of widths that were never measured too, is `curve`'s. Widths above FINEST are
kept in 16 steps an octave.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.curve import Curve, slope_beyond
from draftproof.drafters.draft_cost import MOST, DraftCost
from draftproof.errors import ParameterError

NUM_FIRST: Final = 3
PLAIN_EVERY: Final = 100
"""A pass over one token is asked for when the last was this many passes ago: 1 % of the passes at most."""
LEVEL_GAIN: Final = 0.2
LEAST_GAIN: Final = 0.02
SCATTER_GAIN: Final = 0.05
NUM_TO_TELL: Final = 3
"""After so many passes over other widths the level is theirs, and a measurement tells all that it can of its shape."""
MAX_SURPRISE: Final = log(2.0)
"""A single measurement counts as at most this far from its prediction: other processes cause outliers."""
FINEST: Final = 160
PLAIN: Final = 0
"""In place of a total: a pass in which nobody has drafted."""
NUM_EACH: Final = 64
"""So many passes are taken in one by one; what later ones say of the shape counts together, TOGETHER at a time."""
TOGETHER: Final = 8


@dataclass(frozen=True, slots=True)
class Load:
    """What a request's pass is shared with. num_requests: itself included. num_other_tokens: appended by the others.
    num_cached: entries of all requests in the cache.
    """

    num_requests: int = 1
    num_other_tokens: int = 0
    num_cached: int = 0


ALONE: Final = Load()


class Costs(Protocol):
    """Seconds, or any unit that is the same for both."""

    @property
    def wants_plain_pass(self) -> bool:
        """Whether the next pass had better be a plain one, to be measured."""
        ...

    @property
    def num_requests(self) -> int:
        """How many requests shared the last pass."""
        ...

    def of_pass(self, width: int) -> float:
        """One target pass over `width` tokens of a request, and what others appended to the last one."""
        ...

    def of_passes(self, most: int) -> NDArray[np.float64]:
        """[most] `of_pass` of 1, 2, … tokens."""
        ...

    def of_plain(self) -> float:
        """A pass in which nobody has drafted."""
        ...

    def of_draft(self, num_tokens: int, *, is_lookup: bool = False) -> float:
        """Drafting `num_tokens` tokens. is_lookup: by a lookup that goes before a drafter with weights."""
        ...

    def observe_pass(self, width: int, seconds: float, load: Load = ALONE) -> None:
        """Take in one measured pass."""
        ...

    def observe_draft(self, num_tokens: int, seconds: float, *, is_lookup: bool = False) -> None:
        """Take in one measured draft."""
        ...


def relative_cost(costs: Costs, num_drafted: int, draft_seconds: float) -> float:
    """The tokens that plain steps would emit in what a draft adds to a pass, and in one request's own plain step.

    Alone: (pass + draft) / plain pass. Among n requests a second costs all of them: what is added counts n times.
    """
    added = costs.of_pass(1 + num_drafted) - costs.of_pass(1) + draft_seconds
    return 1.0 + costs.num_requests * added / costs.of_plain()


class LearnedCosts:
    """Costs from measured times. Before the first one a pass over one token costs 1."""

    def __init__(self) -> None:
        self._levels: dict[int, float] = {}
        self._shape: dict[int, float] = {1: 0.0}
        self._widths = [1]
        self._num_measured: dict[int, int] = {}
        # Width -> how many of its measurements came after another width's, or were among the first.
        self._num_told: dict[int, int] = {}
        # None until it is asked for.
        self._curve: Curve | None = None
        # Width -> its first logarithms of seconds over the level.
        self._firsts: dict[int, list[float]] = {}
        self._last_passes: dict[int, int] = {}
        self._scatter = self._last_surprise = 0.0
        self._num_passes = self._num_plain = self._num_since_plain = 0
        # Total -> seconds, as they were asked for since the last pass.
        self._asked: dict[int, float] = {}
        self._drafts = {False: DraftCost(), True: DraftCost()}
        self._load = ALONE

    @property
    def wants_plain_pass(self) -> bool:
        """True until NUM_FIRST plain passes were measured, and PLAIN_EVERY passes after the last one."""
        return self._num_plain < NUM_FIRST or self._num_since_plain >= PLAIN_EVERY

    @property
    def num_requests(self) -> int:
        """As of the last measured pass."""
        return self._load.num_requests

    def of_pass(self, width: int) -> float:
        """Seconds; see the module."""
        total = _binned(width + self._load.num_other_tokens)
        if total not in self._asked:
            self._asked[total] = exp(self._level()) * self._taken().hopeful(total)
        return self._asked[total]

    def of_passes(self, most: int) -> NDArray[np.float64]:
        """Seconds."""
        num_others = self._load.num_other_tokens
        totals = np.arange(1 + num_others, 1 + most + num_others)
        if totals[-1] > FINEST:
            totals = np.array([_binned(int(total)) for total in totals])
        seconds: NDArray[np.float64] = exp(self._level()) * self._taken().hopeful_of(totals)
        return seconds

    def of_plain(self) -> float:
        """Seconds, for as many requests as the last pass had."""
        if PLAIN not in self._asked:
            self._asked[PLAIN] = exp(self._level()) * self._taken().expected(_binned(self._load.num_requests))
        return self._asked[PLAIN]

    def of_draft(self, num_tokens: int, *, is_lookup: bool = False) -> float:
        """Seconds; see `draft_cost`."""
        return self._drafts[is_lookup].of(num_tokens)

    def observe_pass(self, width: int, seconds: float, load: Load = ALONE) -> None:
        """Move level and shape towards the measured time."""
        _check(width, seconds)
        self._load = load
        self._asked.clear()
        if self._num_passes < NUM_EACH or self._num_passes % TOGETHER == 0:
            self._curve = None
        total, octave = _binned(width + load.num_other_tokens), load.num_cached.bit_length()
        num_measured = self._num_measured.get(total, 0)
        self._num_measured[total] = num_measured + 1
        self._num_passes += 1
        num_others = self._num_passes - self._last_passes.get(total, 0) - 1
        self._last_passes[total] = self._num_passes
        is_plain = width + load.num_other_tokens == load.num_requests
        self._num_plain += is_plain
        self._num_since_plain = 0 if is_plain else self._num_since_plain + 1
        if not self._levels:
            self._put(total, self._shape_at(total))
            self._levels[octave] = log(seconds) - self._shape[total]
            self._firsts[total] = [self._shape[total]]
            self._num_told[total] = 1
            return
        level = self._levels[octave] = self._level()
        if num_measured < NUM_FIRST:
            firsts = self._firsts.setdefault(total, [])
            firsts.append(log(seconds) - level)
            self._num_told[total] = len(firsts)
            self._correct(total, sorted(firsts)[(len(firsts) - 1) // 2] - self._shape_at(total))
            return
        surprise = log(seconds) - level - self._shape_at(total)
        surprise = max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))
        # Of neighbouring measurements, so that a machine that slows down is not taken for one that scatters.
        self._scatter += SCATTER_GAIN * ((surprise - self._last_surprise) ** 2 / 2 - self._scatter)
        self._last_surprise = surprise
        self._levels[octave] += LEVEL_GAIN * surprise
        num_told, told = self._num_told[total], min(1.0, num_others / NUM_TO_TELL)
        self._num_told[total] = num_told + (num_others > 0)
        self._correct(total, told * max(LEAST_GAIN, 1.0 / (2 + num_told)) * surprise)

    def _level(self) -> float:
        """Of the last load's octave; of the nearest one before it was met."""
        octave = self._load.num_cached.bit_length()
        known = self._levels.get(octave)
        if known is None:
            known = self._levels[min(self._levels, key=lambda other: abs(other - octave))] if self._levels else 0.0
        return known

    def _correct(self, total: int, surprise: float) -> None:
        """Correct one width and leave the seconds of the other measured ones as they are."""
        if surprise == 0.0:
            return
        if total != 1:
            self._put(total, self._shape_at(total) + surprise)
            return
        self._curve = None
        self._shape = {other: at if other == 1 else at - surprise for other, at in self._shape.items()}
        self._levels = {octave: level + surprise for octave, level in self._levels.items()}
        self._firsts = {other: [at - surprise for at in firsts] for other, firsts in self._firsts.items()}

    def _put(self, total: int, shape: float) -> None:
        if total not in self._shape:
            self._widths.insert(bisect_left(self._widths, total), total)
            self._curve = None
        self._shape[total] = shape

    def observe_draft(self, num_tokens: int, seconds: float, *, is_lookup: bool = False) -> None:
        """Take in one measured draft; one of no tokens says nothing."""
        if num_tokens == 0:
            return
        _check(num_tokens, seconds, "num_drafted", zero_is_fine=True)
        # A first draft that another process interrupted is no more than slow; the next ones find out.
        self._drafts[is_lookup].observe(num_tokens, seconds, MOST * self.of_plain())

    def _shape_at(self, total: int) -> float:
        """As it was measured, or as its measured neighbours were."""
        widths, shape = self._widths, self._shape
        right = bisect_left(widths, total)
        if right < len(widths) and widths[right] == total:
            return shape[total]
        left = widths[right - 1]
        left_cost = exp(shape[left])
        if right == len(widths):
            return log(left_cost + slope_beyond(left, left_cost) * (total - left))
        right_cost = exp(shape[widths[right]])
        share = (total - left) / (widths[right] - left)
        return log(left_cost + share * (right_cost - left_cost))

    def _taken(self) -> Curve:
        if self._curve is None:
            widths = self._widths
            counts = [max(self._num_told.get(width, 0), 1) for width in widths]
            self._curve = Curve(widths, [self._shape[width] for width in widths], counts, self._scatter)
        return self._curve


def _binned(num_tokens: int) -> int:
    if num_tokens <= FINEST:
        return num_tokens
    step = 1 << (num_tokens.bit_length() - 5)
    return (num_tokens + step // 2) // step * step


def _check(count: int, seconds: float, field: str = "width", zero_is_fine: bool = False) -> None:
    if count < 1:
        raise ParameterError(field, count, "1 or more tokens")
    if not isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero_is_fine):
        raise ParameterError("seconds", seconds, "a finite time above 0")
