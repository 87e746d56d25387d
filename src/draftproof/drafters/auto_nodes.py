"""Node budget `auto`, for trees: none, or as many nodes as are worth their time. What is known before drafting decides.

From committed verdicts and costs alone: a tree is grown if some budget n emits more per second than plain steps,
(1 + E[accepted | n]) / (pass(1 + n) + draft); else a probe now and then. Both guards of `guards` hold. For ratio tests
that is all there is: the budget is fixed before a token is drawn. `anticipating` goes on from here.
State: a request's own means fall back on the engine's, which a new request begins with. With `use_clock=False` costs
come from a fixed table and nothing is shared between requests, so that the same seed gives the same text.
Source: the renewal-reward argument for the best rate.
"""

from __future__ import annotations

from typing import Final, Self

from draftproof.drafters.costs import ALONE, Costs, LearnedCosts, Load, relative_cost
from draftproof.drafters.curve import FIRST_SLOPE
from draftproof.drafters.draft_cost import MOST
from draftproof.drafters.fixed_costs import FixedCosts
from draftproof.drafters.guards import PROBE_LOSS, Intervals, LossBudget, Probing
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


class Mean:
    """A mean with forgetting, over a prior."""

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

    use_clock: learn costs from measured times, and share what is learned between requests.
    """

    def __init__(self, max_tokens: int, *, use_clock: bool = True) -> None:
        if max_tokens < 1:
            raise ParameterError("num_tree_nodes", max_tokens, "1 or more nodes", "turn speculation off instead")
        self.max_tokens, self.use_clock = max_tokens, use_clock
        self._budgets = self._possible_budgets()
        slopes = [1.0 + FIRST_SLOPE * num_drafted for num_drafted in range(max_tokens + 1)]
        self._costs: Costs = LearnedCosts() if use_clock else FixedCosts(slopes)
        self._shared = Shared()
        self._start_request(None)

    def _possible_budgets(self) -> tuple[int, ...]:
        return (*(budget for budget in BUDGETS if budget < self.max_tokens), self.max_tokens)

    def _start_request(self, prior: dict[tuple[float | None, int], Mean] | None) -> None:
        self._prior = prior
        self._means: dict[tuple[float | None, int], Mean] = {}
        self._probing: dict[float | None, Probing] = {}
        self._probed = False
        self._asked = 0
        # Of the last pass, in plain steps.
        self._cost = 1.0

    def for_request(self) -> Self:
        """A new request's policy. With the clock it shares costs, budget and the engine's means; else nothing."""
        policy = object.__new__(type(self))
        policy.max_tokens, policy.use_clock = self.max_tokens, self.use_clock
        policy._budgets, policy._costs = self._budgets, self._costs
        policy._shared = self._shared if self.use_clock else Shared()
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
            self._shared.intervals.forget(confidence)
            self._asked = self._affordable(best)
            return self._asked
        probing = self._probing_at(confidence)
        probing.num_waited += 1
        if probing.num_waited < probing.interval and self._has_tried(confidence):
            return 0
        self._asked = self._affordable(self._probe_nodes())
        self._probed = self._asked > 0
        return self._asked

    def observe(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """Take in a committed verdict; `num_drafted` is what was verified."""
        if not 0 <= num_accepted <= num_drafted <= self.max_tokens:
            raise ParameterError(
                "num_accepted, num_drafted",
                (num_accepted, num_drafted),
                f"0 <= num_accepted <= num_drafted <= {self.max_tokens}",
            )
        cost = self._cost = self._relative(num_drafted, drafted=self._asked > 0)
        self._shared.budget.settle(num_accepted + 1, cost)
        if self._asked == 0:
            return
        if self._probed:
            probing = self._probing_at(confidence)
            probing.settle(paid=num_accepted + 1 > cost)
            self._shared.intervals.settle(confidence, probing.interval)
        self._learn(num_drafted, num_accepted, confidence)

    def _learn(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """What `_speed` goes by, of a pass that has drafted."""
        key = (confidence, self._nearest(self._asked))
        for means in (self._means, self._prior):
            if means is not None:
                means.setdefault(key, Mean()).add(num_accepted)
        self._shared.typical_nodes.setdefault(confidence, Mean()).add(num_drafted)
        self._shared.pooled_accepted.setdefault(confidence, Mean()).add(num_accepted)

    def observe_cost(self, width: int, seconds: float, load: Load = ALONE) -> None:
        """One target pass over `width` tokens, shared as `load` says, took `seconds`."""
        self._costs.observe_pass(width, seconds, load)

    def observe_draft_cost(self, num_drafted: int, seconds: float, confidence: float | None = None) -> None:
        """Growing a tree took `seconds`, however many of its nodes were kept."""
        if self.use_clock:
            self._shared.settle_draft(seconds, self._costs.of_plain(), is_empty=num_drafted == 0)

    def _speed(self, confidence: float | None, budget: int) -> float:
        """Emitted tokens per plain step's time."""
        return (1.0 + self._expected(confidence, budget)) / self._relative(budget, drafted=True)

    def _expected(self, confidence: float | None, budget: int) -> float:
        """A budget's own mean; one that was not tried is taken to gain by GROWTH over what others have shown."""
        prior = FIRST_ACCEPTED
        pooled = self._shared.pooled_accepted.get(confidence)
        if pooled is not None:
            typical = self._shared.typical_nodes[confidence].given(PROBE_NODES)
            prior = pooled.given(FIRST_ACCEPTED) * (budget / max(typical, 1.0)) ** GROWTH
        for means in (self._prior, self._means):
            known = means.get((confidence, budget)) if means is not None else None
            prior = known.given(prior) if known is not None else prior
        return prior

    def _has_tried(self, confidence: float | None) -> bool:
        return any(known[0] == confidence for means in (self._means, self._prior or {}) for known in means)

    def _probing_at(self, confidence: float | None) -> Probing:
        if confidence not in self._probing:
            self._probing[confidence] = self._shared.intervals.first(confidence)
        return self._probing[confidence]

    def _probe_nodes(self) -> int:
        counts = range(min(PROBE_NODES, self.max_tokens), 0, -1)
        return next((count for count in counts if self._relative(count, drafted=False) <= 1.0 + PROBE_LOSS), 1)

    def _affordable(self, num_nodes: int) -> int:
        while num_nodes > 0 and not self._shared.budget.affords(self._relative(num_nodes, drafted=True)):
            num_nodes //= 2
        return num_nodes

    def _relative(self, num_nodes: int, *, drafted: bool) -> float:
        """A pass over 1 + num_nodes tokens, in plain steps, with what growing a tree takes."""
        return relative_cost(self._costs, num_nodes, self._shared.draft_seconds if drafted else 0.0)

    def _nearest(self, num_nodes: int) -> int:
        return min(self._budgets, key=lambda budget: abs(budget - num_nodes))


class Shared:
    """What the engine's requests share."""

    def __init__(self) -> None:
        self.means: dict[tuple[float | None, int], Mean] = {}
        self.typical_nodes: dict[float | None, Mean] = {}
        self.pooled_accepted: dict[float | None, Mean] = {}
        self.budget = LossBudget()
        self.intervals = Intervals()
        self.draft_seconds = 0.0
        self.has_draft_time = self.is_warm = False

    def settle_draft(self, seconds: float, plain_seconds: float, *, is_empty: bool = False) -> None:
        """Seconds of a draft and of a plain step. The first draft takes what no other will, and isn't counted; the
        second one counts as MOST plain steps at most, as in `costs`.

        is_empty: of no nodes. It was grown and then cut to nothing; or the drafter had nothing to begin with, as before
        the target has read the context, and was so quick that nothing follows for drafts.
        """
        if is_empty and not self.has_draft_time:
            self.draft_seconds = min(seconds, MOST * plain_seconds)
            return
        if is_empty and self.is_overrated(seconds):
            return
        if not is_empty and not self.is_warm:
            self.is_warm = True
            return
        seconds = min(seconds, MOST * (self.draft_seconds if self.has_draft_time else plain_seconds))
        is_news = not self.has_draft_time or self.is_overrated(seconds)
        self.draft_seconds += (seconds - self.draft_seconds) * (1.0 if is_news else DRAFT_GAIN)
        self.has_draft_time = True

    def is_overrated(self, seconds: float) -> bool:
        """Would drafts take much longer than this one by what is known? Nothing makes a draft faster than it is."""
        return MOST * seconds < self.draft_seconds
