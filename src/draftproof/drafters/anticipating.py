"""Node budget `auto` that looks at the draft while it grows: for verifiers whose output can't depend on it.

Marginal rule: something that takes s seconds is worth it while what it gains, in expected emitted tokens, is more than
rate * s; rate is what the engine emits in a second, lately. So, of a tree whose nodes are accepted with probabilities
a_1 >= a_2 >= …, the first n are verified that maximise a_1 + … + a_n - rate * (pass(1 + n) - pass(1)): that maximum is
the tree's value. Of candidates that another of the drafter's passes could expand, the first k are taken that
maximise the value expected of them - rate * seconds(k); none where that is below 0.
Whether to draft at all is decided by what drafted passes have emitted per plain step's time: a request's own ratio,
over PRIOR_PASSES of the engine's, which begins at FIRST_RATIO. Where it is below 1, probes take over (`guards`).
The rate is a request's own, which falls back on the engine's; of n requests that share their passes, n times that.
A type of its own: only `Anticipating` policies have these methods, and only drafters of verifiers that bear it are
handed one (`engine/drafting.py`).
Source: the renewal-reward argument for the best rate; DSpark's scheduler admits tokens by it.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.auto_nodes import AutoNodes, Mean
from draftproof.drafters.costs import LearnedCosts, relative_cost
from draftproof.drafters.draft_cost import MOST

RATE_FORGETTING: Final = 0.98
"""Weight that a request's older passes keep at each new one: a memory of about 50."""
FIRST_RATIO: Final = 1.2
"""What drafted passes are taken to emit per plain step's time, before any was run: it is tried."""
PRIOR_PASSES: Final = 12.0
ENGINE_FORGETTING: Final = 0.99
RATIO_FORGETTING: Final = 0.97
TOGETHER: Final = 8
"""Passes of a request alone whose drafts go by the same prices."""
RATE_PRIOR: Final = 15.0
"""The engine's rate counts as this many of a request's own plain passes."""


class Anticipating(Protocol):
    """What a drafter may ask about a draft that it has begun."""

    @property
    def is_probe(self) -> bool:
        """Whether the draft is a probe, which is not grown: whether its first token is guessed says enough."""
        ...

    def num_worth(self, survival: NDArray[np.float64]) -> int:
        """How many of a draft's first nodes to keep. survival: [n] the probability that each is accepted, falling."""
        ...

    def least_survivals(self, num: int) -> NDArray[np.float64]:
        """[num] how likely a draft's first, second, … node has to be at least for `num_worth` to keep it, whatever else
        is in the draft. The same array while nothing has changed."""
        ...

    def values(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """[m] what the best cut of each of m trees gains over none, in emitted tokens: 0 or more.

        survival: [m, n] of their nodes, falling; 0 for a tree of fewer.
        """
        ...

    def num_expanded(self, gains: NDArray[np.float64]) -> int:
        """How many candidates another of the drafter's passes had better expand; 0 where it doesn't pay.

        gains: [n] what expanding each is expected to add to the value, falling.
        """
        ...

    def observe_round(self, num_nodes: int, seconds: float) -> None:
        """One of the drafter's passes after the first took `seconds`, over `num_nodes` nodes of one request."""
        ...


class CuttingNodes(AutoNodes):
    """`AutoNodes` that is `Anticipating`: it grows the largest tree and cuts it."""

    _prices: _Prices | None
    _num_priced: int

    def __init__(self, max_tokens: int, *, use_clock: bool = True) -> None:
        self._engine = _Rates()
        self._engine_ratios: dict[float | None, _Ratio] = {}
        super().__init__(max_tokens, use_clock=use_clock)

    def for_request(self) -> Self:
        """As `AutoNodes`'s; the engine's rate is shared with the clock."""
        policy = super().for_request()
        policy._engine = self._engine if self.use_clock else _Rates()
        policy._engine_ratios = self._engine_ratios if self.use_clock else {}
        return policy

    def num_tokens(self, confidence: float | None) -> int:
        """As `AutoNodes`'s."""
        if self._num_priced >= TOGETHER or self._costs.num_requests > 1:
            self._prices = None
        return super().num_tokens(confidence)

    @property
    def is_probe(self) -> bool:
        """See `Anticipating`."""
        return self._probed

    def num_worth(self, survival: NDArray[np.float64]) -> int:
        """See `Anticipating`. A probe is kept whole, to be worth what it costs."""
        if self._probed or not len(survival):
            return len(survival)
        return int(np.argmax(self._gains(survival)))

    def least_survivals(self, num: int) -> NDArray[np.float64]:
        """See `Anticipating`."""
        least = self._priced(num).least
        return least if num == len(least) else least[:num]

    def values(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Anticipating`."""
        best: NDArray[np.float64] = self._gains(survival).max(axis=-1)
        return best

    def num_expanded(self, gains: NDArray[np.float64]) -> int:
        """See `Anticipating`."""
        values = np.cumsum(gains) - self._priced(len(gains)).rounds[: len(gains)]
        best = int(values.argmax())
        return best + 1 if values[best] > 0 else 0

    def observe_round(self, num_nodes: int, seconds: float) -> None:
        """See `Anticipating`."""
        if self.use_clock and seconds > 0:
            self._engine.settle_round(num_nodes, seconds)
            self._num_priced = TOGETHER

    def observe_draft_cost(self, num_drafted: int, seconds: float, confidence: float | None = None) -> None:
        """Growing a tree took `seconds`, however many of its nodes were kept."""
        shared = self._shared
        self._warms_up = not shared.is_warm
        # A probe has had to catch up, and is not grown: of what a draft takes it says how much at most.
        if not self._probed or shared.draft_seconds == 0 or shared.is_overrated(seconds):
            super().observe_draft_cost(num_drafted, seconds, confidence)
        self._draft_seconds = min(seconds, MOST * shared.draft_seconds) if self.use_clock else 0.0

    def observe(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """Take in a committed verdict."""
        super().observe(num_drafted, num_accepted, confidence)
        self._num_priced += 1
        self._own.settle(num_accepted + 1, self._cost)
        self._engine.settle(num_accepted + 1, self._cost)

    def _learn(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        # What a probe has had to catch up with is not what drafting in every pass costs; nor is what warming up takes.
        seconds = 0.0 if self._warms_up else self._draft_seconds
        if self._probed:
            seconds = min(seconds, self._shared.draft_seconds)
        cost = relative_cost(self._costs, num_drafted, seconds)
        for ratios, forgetting in ((self._ratios, RATIO_FORGETTING), (self._engine_ratios, ENGINE_FORGETTING)):
            if confidence not in ratios:
                ratios[confidence] = _Ratio(forgetting)
            ratios[confidence].settle(num_accepted + 1, cost)

    def _has_tried(self, confidence: float | None) -> bool:
        return confidence in self._engine_ratios or confidence in self._ratios

    def _possible_budgets(self) -> tuple[int, ...]:
        return (self.max_tokens,)

    def _start_request(self, prior: dict[tuple[float | None, int], Mean] | None) -> None:
        super()._start_request(prior)
        self._own = _Rates()
        self._ratios: dict[float | None, _Ratio] = {}
        self._draft_seconds = 0.0
        # The engine's first draft: it takes what no other one will.
        self._warms_up = False
        self._prices, self._num_priced = None, 0

    def _speed(self, confidence: float | None, budget: int) -> float:
        """Emitted tokens per plain step's time, of drafted passes; they are cut to what is worth it."""
        engine = self._engine_ratios.get(confidence, _Ratio(ENGINE_FORGETTING)).over(FIRST_RATIO)
        own = self._ratios.get(confidence)
        return engine if own is None else own.over(engine)

    def _gains(self, survival: NDArray[np.float64]) -> NDArray[np.float64]:
        """[…, n + 1] what the first 0, 1, … n nodes gain, less what their part of the pass is worth."""
        num = survival.shape[-1]
        gains = np.zeros((*survival.shape[:-1], num + 1))
        survival.cumsum(axis=-1, out=gains[..., 1:])
        gains -= self._priced(num).nodes[: num + 1]
        return gains

    def _priced(self, num: int) -> _Prices:
        """For `num` nodes at least. They are the same while a draft grows, and of a request alone for TOGETHER passes:
        the machine's pace is in both factors, and falls out."""
        if self._prices is None or len(self._prices.rounds) < num:
            most = max(self.max_tokens, num)
            passes, rate = self._costs.of_passes(most + 1), self._rate()
            nodes = rate * (passes - passes[0])
            self._prices = _Prices(nodes, rate * self._engine.of_rounds(most), _least_slopes(nodes))
            self._num_priced = 0
        return self._prices

    def _rate(self) -> float:
        """Emitted tokens per second of all requests that share a pass; never below plain steps'."""
        engine = max(self._engine.given(0.0, 1.0), 1.0)
        return max(self._own.given(RATE_PRIOR, engine), 1.0) * self._costs.num_requests / self._costs.of_plain()


class _Prices(NamedTuple):
    """In emitted tokens. nodes: [n + 1] what 0, 1, … n nodes add to a pass. rounds: [n] another of the drafter's passes
    over 1, 2, … n of them. least: [n] the least that each node has to gain, see `_least_slopes`."""

    nodes: NDArray[np.float64]
    rounds: NDArray[np.float64]
    least: NDArray[np.float64]


def _least_slopes(nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] of 0, 1, … n nodes' prices: at m the least mean price of the next ones, however many.

    Nodes m + 1 to j are worth it if their gains are more than their prices; gains fall, so the first one's is more than
    their mean price then.
    """
    counts = np.arange(len(nodes))
    steps = counts[None, :] - counts[:, None]
    slopes = np.divide(nodes[None, :] - nodes[:, None], steps, out=np.full(steps.shape, np.inf), where=steps > 0)
    least: NDArray[np.float64] = slopes[:-1].min(axis=1)
    return least


class _Ratio:
    """Emitted tokens per plain step's time of drafted passes, with forgetting."""

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self._tokens = self._steps = 0.0

    def settle(self, num_emitted: int, relative_cost: float) -> None:
        self._tokens = self._forgetting * self._tokens + num_emitted
        self._steps = self._forgetting * self._steps + relative_cost

    def over(self, prior: float) -> float:
        """With PRIOR_PASSES of the prior's."""
        return (self._tokens + PRIOR_PASSES * prior) / (self._steps + PRIOR_PASSES)


class _Rates:
    """Emitted tokens per plain step's time, with forgetting; and the seconds of the drafter's further passes."""

    def __init__(self) -> None:
        self._tokens = self._steps = 0.0
        self._rounds: LearnedCosts | None = None

    def settle(self, num_emitted: int, relative_cost: float) -> None:
        self._tokens = RATE_FORGETTING * self._tokens + num_emitted
        self._steps = RATE_FORGETTING * self._steps + relative_cost

    def given(self, strength: float, prior: float) -> float:
        if self._steps + strength == 0:
            return prior
        return (self._tokens + strength * prior) / (self._steps + strength)

    def settle_round(self, num_nodes: int, seconds: float) -> None:
        if self._rounds is None:
            self._rounds = LearnedCosts()
        self._rounds.observe_pass(num_nodes, seconds)

    def of_rounds(self, most: int) -> NDArray[np.float64]:
        """[most] seconds of a pass over 1, 2, … nodes; 0 before one was run."""
        if self._rounds is None:
            return np.zeros(most)
        return self._rounds.of_passes(most)
