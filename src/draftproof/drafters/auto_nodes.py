"""Node budget `auto`, for trees: none, or as many nodes as are worth their time.

Before drafting, from committed verdicts and measured times alone: a tree is grown if some budget n emits more per
second than plain steps, (1 + E[accepted | n]) / (pass(1 + n) + draft); else a probe now and then. Both guards of
`guards` hold. For ratio tests that is all: the budget is fixed before a token is drawn.
After drafting, where the output can't depend on the draft (`Anticipating`): the nodes come with the probabilities that
the target gets to them, and the first n are kept that maximise 1 + sum of these - rate * pass(1 + n), rate the emitted
tokens per second lately. So a node stays while its survival is worth the time that it adds.
State: a request's own means fall back on the engine's, which a new request begins with. With `use_clock=False` costs
come from a fixed table and nothing is shared between requests, so that the same seed gives the same text.
Source: the marginal rule is the renewal-reward argument for the best rate; DSpark's scheduler admits tokens by it.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.costs import FIRST_SLOPE, Costs, FixedCosts, LearnedCosts
from draftproof.drafters.guards import LossBudget, Probing
from draftproof.errors import ParameterError

BUDGETS: Final = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
FORGETTING: Final = 0.97
"""Weight that older passes keep at each new one: a memory of about 33."""
PRIOR_STRENGTH: Final = 3.0
FIRST_ACCEPTED: Final = 0.8
"""How many tokens of a tree are taken to be accepted before any was verified."""
GROWTH: Final = 0.3
"""Accepted tokens grow with about this power of the nodes, until a budget has shown its own."""
PROBE_NODES: Final = 8
DRAFT_GAIN: Final = 0.1


class Anticipating(Protocol):
    """A budget that looks at the draft: given only to drafters of verifiers whose output can't depend on it."""

    def num_worth(self, survival: NDArray[np.float64]) -> int:
        """How many of a draft's first nodes to keep. survival: [n] the probability that each is accepted."""
        ...


class _Mean:
    __slots__ = ("total", "weight")

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def add(self, value: float) -> None:
        self.total = FORGETTING * self.total + value
        self.weight = FORGETTING * self.weight + 1.0

    def given(self, prior: float) -> float:
        return (self.total + PRIOR_STRENGTH * prior) / (self.weight + PRIOR_STRENGTH)


class AutoNodes:
    """Chooses 0 to `max_tokens` nodes for one request; `for_request` makes the next request's policy.

    use_clock: learn costs from measured times, and share what is learned between requests. anticipates: the verifier's
    output can't depend on the draft, so that `num_worth` may cut it.
    """

    def __init__(self, max_tokens: int, *, use_clock: bool = True, anticipates: bool = True) -> None:
        if max_tokens < 1:
            raise ParameterError("num_tree_nodes", max_tokens, "1 or more nodes", "turn speculation off instead")
        self.max_tokens, self.use_clock, self.anticipates = max_tokens, use_clock, anticipates
        if anticipates:
            self._budgets: tuple[int, ...] = (max_tokens,)
        else:
            self._budgets = (*(budget for budget in BUDGETS if budget < max_tokens), max_tokens)
        slopes = [1.0 + FIRST_SLOPE * num_drafted for num_drafted in range(max_tokens + 1)]
        self._costs: Costs = LearnedCosts() if use_clock else FixedCosts(slopes)
        self._shared = _Shared()
        self._start_request(None)

    def _start_request(self, prior: dict[tuple[float | None, int], _Mean] | None) -> None:
        self._prior = prior
        self._means: dict[tuple[float | None, int], _Mean] = {}
        self._probing: dict[float | None, Probing] = {}
        self._probed = False
        self._asked = 0

    def for_request(self) -> AutoNodes:
        """A new request's policy. With the clock it shares costs, budget and the engine's means; else nothing."""
        policy = object.__new__(AutoNodes)
        policy.max_tokens, policy.use_clock, policy.anticipates = self.max_tokens, self.use_clock, self.anticipates
        policy._budgets, policy._costs = self._budgets, self._costs
        policy._shared = self._shared if self.use_clock else _Shared()
        policy._start_request(policy._shared.means)
        return policy

    def num_tokens(self, confidence: float | None) -> int:
        """How many nodes to grow now; see the module."""
        self._probed = False
        self._asked = 0
        if self._costs.wants_plain_pass:
            return 0
        best = max(self._budgets, key=lambda budget: self._speed(confidence, budget))
        if self._speed(confidence, best) > 1.0:
            self._asked = self._affordable(best)
            return self._asked
        probing = self._probing.setdefault(confidence, Probing())
        probing.num_waited += 1
        if probing.num_waited < probing.interval and self._has_tried(confidence):
            return 0
        self._asked = self._affordable(min(PROBE_NODES, self.max_tokens))
        self._probed = self._asked > 0
        return self._asked

    def num_worth(self, survival: NDArray[np.float64]) -> int:
        """See `Anticipating`. A probe is kept whole, to be worth what it costs."""
        if self._probed or not len(survival):
            return len(survival)
        costs = np.array([self._costs.of_pass(1 + num_nodes) for num_nodes in range(len(survival) + 1)])
        gains = np.concatenate([[0.0], np.cumsum(survival)]) - self._rate() * costs
        return int(np.argmax(gains))

    def observe(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """Take in a committed verdict; `num_drafted` is what was verified."""
        if not 0 <= num_accepted <= num_drafted <= self.max_tokens:
            raise ParameterError(
                "num_accepted, num_drafted",
                (num_accepted, num_drafted),
                f"0 <= num_accepted <= num_drafted <= {self.max_tokens}",
            )
        cost = self._relative(num_drafted, drafted=self._asked > 0)
        self._shared.budget.settle(num_accepted + 1, cost)
        self._shared.settle_rate(num_accepted + 1, cost * self._costs.of_pass(1))
        if self._asked == 0:
            return
        if self._probed:
            self._probing.setdefault(confidence, Probing()).settle(paid=num_accepted + 1 > cost)
        key = (confidence, self._nearest(self._asked))
        for means in (self._means, self._prior):
            if means is not None:
                means.setdefault(key, _Mean()).add(num_accepted)
        self._shared.typical_nodes.setdefault(confidence, _Mean()).add(num_drafted)
        self._shared.pooled_accepted.setdefault(confidence, _Mean()).add(num_accepted)

    def observe_cost(self, width: int, seconds: float) -> None:
        """One target pass over `width` tokens took `seconds`."""
        self._costs.observe_pass(width, seconds)

    def observe_draft_cost(self, num_drafted: int, seconds: float) -> None:
        """Growing a tree took `seconds`, however many of its nodes were kept."""
        if self.use_clock:
            self._shared.settle_draft(seconds)

    def _speed(self, confidence: float | None, budget: int) -> float:
        """Emitted tokens per plain step's time."""
        num_nodes = budget
        if self.anticipates:
            # What is verified is what was worth it, lately; before any tree was cut, all of it is taken to be.
            typical = self._shared.typical_nodes.get(confidence)
            num_nodes = budget if typical is None else round(min(typical.given(PROBE_NODES), budget))
        return (1.0 + self._expected(confidence, budget)) / self._relative(num_nodes, drafted=True)

    def _expected(self, confidence: float | None, budget: int) -> float:
        """A budget's own mean; one that was not tried is taken to gain by GROWTH over what others have shown."""
        prior = FIRST_ACCEPTED
        accepted = self._shared.pooled_accepted.get(confidence)
        if accepted is not None:
            nodes = self._shared.typical_nodes[confidence].given(PROBE_NODES)
            prior = accepted.given(FIRST_ACCEPTED) * (budget / max(nodes, 1.0)) ** GROWTH
        for means in (self._prior, self._means):
            known = means.get((confidence, budget)) if means is not None else None
            prior = known.given(prior) if known is not None else prior
        return prior

    def _has_tried(self, confidence: float | None) -> bool:
        return any(known[0] == confidence for means in (self._means, self._prior or {}) for known in means)

    def _affordable(self, num_nodes: int) -> int:
        while num_nodes > 0 and not self._shared.budget.affords(self._relative(num_nodes, drafted=True)):
            num_nodes //= 2
        return num_nodes

    def _relative(self, num_nodes: int, *, drafted: bool) -> float:
        """A pass over 1 + num_nodes tokens, in plain steps, with what growing a tree takes."""
        seconds = self._costs.of_pass(1 + num_nodes) + (self._shared.draft_seconds if drafted else 0.0)
        return seconds / self._costs.of_pass(1)

    def _rate(self) -> float:
        """Emitted tokens per second, lately; never below plain steps'."""
        return max(self._shared.rate or 0.0, 1.0 / self._costs.of_pass(1))

    def _nearest(self, num_nodes: int) -> int:
        return min(self._budgets, key=lambda budget: abs(budget - num_nodes))


class _Shared:
    """What the engine's requests share."""

    def __init__(self) -> None:
        self.means: dict[tuple[float | None, int], _Mean] = {}
        self.typical_nodes: dict[float | None, _Mean] = {}
        self.pooled_accepted: dict[float | None, _Mean] = {}
        self.budget = LossBudget()
        self.draft_seconds = 0.0
        self._has_draft_time = False
        self._tokens = self._seconds = 0.0

    @property
    def rate(self) -> float | None:
        return self._tokens / self._seconds if self._seconds > 0 else None

    def settle_rate(self, num_emitted: int, seconds: float) -> None:
        self._tokens = FORGETTING * self._tokens + num_emitted
        self._seconds = FORGETTING * self._seconds + seconds

    def settle_draft(self, seconds: float) -> None:
        self.draft_seconds += (seconds - self.draft_seconds) * (DRAFT_GAIN if self._has_draft_time else 1.0)
        self._has_draft_time = True
