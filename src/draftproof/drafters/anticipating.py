"""Node budget `auto` that looks at the draft while it grows: for verifiers whose output can't depend on it.

Marginal rule: something that takes s seconds is worth it while what it gains, in expected emitted tokens, is more than
rate * s; rate is what the engine emits in a second, lately. So, of a tree whose nodes are accepted with probabilities
a_1 >= a_2 >= …, the first n are verified that maximise a_1 + … + a_n - rate * (pass(1 + n) - pass(1)): that maximum is
the tree's value. Another of the drafter's passes is run while the value that it is expected to add is more than
rate * its seconds.
The rate is a request's own, which falls back on the engine's; of n requests that share their passes, n times that.
A type of its own: only `Anticipating` policies have these methods, and only drafters of verifiers that bear it are
handed one (`engine/drafting.py`).
Source: the renewal-reward argument for the best rate; DSpark's scheduler admits tokens by it.
"""

from __future__ import annotations

from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.auto_nodes import PROBE_NODES, AutoNodes, Mean

RATE_FORGETTING: Final = 0.98
"""Weight that a request's older passes keep at each new one: a memory of about 50."""
RATE_PRIOR: Final = 15.0
"""The engine's rate counts as this many of a request's own plain passes."""
ROUND_GAIN: Final = 0.1


class Anticipating(Protocol):
    """What a drafter may ask about a draft that it has begun."""

    def num_worth(self, survival: NDArray[np.float64]) -> int:
        """How many of a draft's first nodes to keep. survival: [n] the probability that each is accepted, falling."""
        ...

    def value(self, survival: NDArray[np.float64]) -> float:
        """What the best cut of such nodes gains over none, in emitted tokens: 0 or more."""
        ...

    def is_worth_round(self, gain: float) -> bool:
        """Whether another of the drafter's passes pays, that is expected to add `gain` to the value."""
        ...

    def observe_round(self, seconds: float) -> None:
        """One of the drafter's passes after the first took `seconds`, for one request."""
        ...

    def net(self, num_accepted: int, num_nodes: int, draft_seconds: float) -> float:
        """The tokens that a verified draft has gained, less those that plain steps emit in the time it took."""
        ...


class CuttingNodes(AutoNodes):
    """`AutoNodes` that is `Anticipating`: it grows the largest tree and cuts it."""

    _added: NDArray[np.float64] | None

    def __init__(self, max_tokens: int, *, use_clock: bool = True) -> None:
        self._engine = _Rates()
        super().__init__(max_tokens, use_clock=use_clock)

    def for_request(self) -> Self:
        """As `AutoNodes`'s; the engine's rate is shared with the clock."""
        policy = super().for_request()
        policy._engine = self._engine if self.use_clock else _Rates()
        return policy

    def num_tokens(self, confidence: float | None) -> int:
        """As `AutoNodes`'s."""
        self._added = None
        return super().num_tokens(confidence)

    def num_worth(self, survival: NDArray[np.float64]) -> int:
        """See `Anticipating`. A probe is kept whole, to be worth what it costs."""
        if self._probed or not len(survival):
            return len(survival)
        return int(np.argmax(self._gains(survival)))

    def value(self, survival: NDArray[np.float64]) -> float:
        """See `Anticipating`."""
        return float(self._gains(survival).max())

    def is_worth_round(self, gain: float) -> bool:
        """See `Anticipating`."""
        return self._probed or gain > self._rate() * self._engine.round_seconds

    def observe_round(self, seconds: float) -> None:
        """See `Anticipating`."""
        if self.use_clock:
            self._engine.settle_round(seconds)

    def net(self, num_accepted: int, num_nodes: int, draft_seconds: float) -> float:
        """See `Anticipating`."""
        added = self._costs.of_pass(1 + num_nodes) - self._costs.of_pass(1)
        return num_accepted - self._rate() * (added + (draft_seconds if self.use_clock else 0.0))

    def observe(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """Take in a committed verdict."""
        super().observe(num_drafted, num_accepted, confidence)
        cost = self._relative(num_drafted, drafted=self._asked > 0)
        self._own.settle(num_accepted + 1, cost)
        self._engine.settle(num_accepted + 1, cost)

    def _possible_budgets(self) -> tuple[int, ...]:
        return (self.max_tokens,)

    def _start_request(self, prior: dict[tuple[float | None, int], Mean] | None) -> None:
        super()._start_request(prior)
        self._own = _Rates()
        self._added = None

    def _num_verified(self, confidence: float | None, budget: int) -> int:
        """What was worth it, lately; before any tree was cut, all of it is taken to be."""
        typical = self._shared.typical_nodes.get(confidence)
        return budget if typical is None else round(min(typical.given(PROBE_NODES), budget))

    def _gains(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """[n + 1] what the first 0, 1, … n nodes gain, less what their part of the pass is worth."""
        if self._added is None or len(self._added) <= len(survival):
            passes = [
                self._costs.of_pass(1 + num_nodes) for num_nodes in range(max(self.max_tokens, len(survival)) + 1)
            ]
            self._added = np.array(passes) - passes[0]
        gains = np.concatenate([[0.0], np.cumsum(survival)]) - self._rate() * self._added[: len(survival) + 1]
        return np.asarray(gains, dtype=np.float64)

    def _rate(self) -> float:
        """Emitted tokens per second of all requests that share a pass; never below plain steps'."""
        engine = max(self._engine.given(0.0, 1.0), 1.0)
        return max(self._own.given(RATE_PRIOR, engine), 1.0) * self._costs.num_requests / self._costs.of_plain()


class _Rates:
    """Emitted tokens per plain step's time, with forgetting; and the seconds of the drafter's further passes."""

    def __init__(self) -> None:
        self._tokens = self._steps = self.round_seconds = 0.0
        self._has_round = False

    def settle(self, num_emitted: int, relative_cost: float) -> None:
        self._tokens = RATE_FORGETTING * self._tokens + num_emitted
        self._steps = RATE_FORGETTING * self._steps + relative_cost

    def given(self, strength: float, prior: float) -> float:
        if self._steps + strength == 0:
            return prior
        return (self._tokens + strength * prior) / (self._steps + strength)

    def settle_round(self, seconds: float) -> None:
        self.round_seconds += (seconds - self.round_seconds) * (ROUND_GAIN if self._has_round else 1.0)
        self._has_round = True
