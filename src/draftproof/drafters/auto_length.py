"""Length `auto`: the draft length, 0 included, that maximises the expected emitted tokens per second.

    n* = argmax over n of (1 + E[accepted | n, confidence]) / (pass(1 + n) + draft(n))

E[accepted] comes from committed verdicts (`acceptance`), the times from measured passes (`costs`).

What places behind n* would do is not seen while n* is drafted, so at intervals that grow from FIRST_STRETCH to
LAST_STRETCH passes while n* stays one token more is drafted: a few unlucky drafts don't keep it short for good.

Two guards keep it close to plain decoding on text that can't be guessed (`guards`): a budget of steps that may be
lost, and, where n* is 0, probes at intervals that grow. A probe whose tokens are all accepted also halves the weight of
what was known.

Where steps run ahead of the host a pass and its draft take other times than where they are waited for. Those are
learned apart, draft and pass as one (`run_ahead`).

Why it is exact: see `length`. It reads the clock, so under exact-law verifiers the same seed may give another text
in another run; `use_clock=False` takes costs from a fixed table and shares nothing between requests: the
lengths, and so the text, are then a function of the request and its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftproof.drafters.acceptance import LOOKUP_CLASS, AcceptanceRates, Confidence
from draftproof.drafters.costs import ALONE, Costs, LearnedCosts, Load, relative_cost
from draftproof.drafters.curve import FIRST_SLOPE
from draftproof.drafters.fixed_costs import FixedCosts
from draftproof.drafters.guards import PROBE_LOSS, Intervals, LossBudget, Probing
from draftproof.errors import ParameterError

FIRST_STRETCH: Final = 4
LAST_STRETCH: Final = 32


class AutoLength:
    """Chooses 0 to `max_tokens` drafted tokens for one request; `for_request` makes the next request's policy.

    use_clock: learn costs from measured times, and share costs, budget and acceptance between requests.
    cost_table: with use_clock=False, [max_tokens + 1] relative costs of passes over 1, 2, … tokens;
        None stands for 1, 1.05, 1.10, …
    draft_token_cost: with use_clock=False, the relative cost of one drafted token.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        use_clock: bool = True,
        cost_table: Sequence[float] | None = None,
        draft_token_cost: float = 0.0,
    ) -> None:
        if max_tokens < 1:
            raise ParameterError(
                "num_speculative_tokens", max_tokens, "1 or more tokens", "turn speculation off instead"
            )
        if use_clock and (cost_table is not None or draft_token_cost != 0.0):
            raise ParameterError(
                "use_clock", use_clock, "False where costs are given", "measured times replace a table"
            )
        if cost_table is not None and len(cost_table) != max_tokens + 1:
            raise ParameterError(
                "cost_table", list(cost_table), f"{max_tokens + 1} costs, of passes over 1 to {max_tokens + 1} tokens"
            )
        self.max_tokens = max_tokens
        self.use_clock = use_clock
        if use_clock:
            self._costs: Costs = LearnedCosts()
        else:
            table = cost_table or [1.0 + FIRST_SLOPE * num_drafted for num_drafted in range(max_tokens + 1)]
            self._costs = FixedCosts(table, draft_token_cost)
        self._costs_waited, self._costs_ahead = self._costs, LearnedCosts() if use_clock else None
        self._engine_rates = AcceptanceRates() if use_clock else None
        self._budget = LossBudget()
        self._intervals = Intervals()
        self._start_request()

    def _start_request(self) -> None:
        self._rates = AcceptanceRates(self._engine_rates)
        self._probing: dict[Confidence, Probing] = {}
        self._probed = self._is_settled = self._measures = self._is_ahead = False
        self._last_best, self._stretch_every, self._num_since_stretch = 0, FIRST_STRETCH, 0

    def for_request(self) -> AutoLength:
        """A new request's policy. With the clock it shares costs, budget and the acceptance prior; else nothing."""
        policy = object.__new__(AutoLength)
        policy.max_tokens, policy.use_clock, policy._costs = self.max_tokens, self.use_clock, self._costs_waited
        policy._costs_waited, policy._costs_ahead = self._costs_waited, self._costs_ahead
        policy._engine_rates = self._engine_rates
        policy._budget = self._budget if self.use_clock else LossBudget()
        policy._intervals = self._intervals if self.use_clock else Intervals()
        policy._start_request()
        return policy

    @property
    def is_settled(self) -> bool:
        """Was the last answer of `num_tokens` a length that pays by measured times, and nothing that is tried out?"""
        return self.use_clock and self._is_settled

    @property
    def measures_plain(self) -> bool:
        """Was the last answer 0 because a plain pass is to be timed?"""
        return self._measures

    def run_ahead(self) -> None:
        """The request's passes run ahead of the host from now on: what such passes cost is what its lengths go by.

        Raises ParameterError without the clock, where lengths must not depend on what runs.
        """
        if self._costs_ahead is None:
            raise ParameterError("use_clock", False, "True where steps run ahead")
        self._costs, self._is_ahead = self._costs_ahead, True

    def would_draft(self, confidence: Confidence) -> int | None:
        """What `num_tokens` would answer now, but that nothing is asked; None where it would try something out."""
        if self._costs.wants_plain_pass:
            return None
        best = self._affordable(self._best(confidence), confidence)
        if best == 0:
            probing = self._probing_at(confidence)
            is_due = probing.num_waited + 1 >= probing.interval or not self._rates.has_tried(confidence)
            return None if is_due else 0
        return best

    def wait(self, confidence: Confidence) -> None:
        """A plain pass that this policy wasn't asked about."""
        if confidence in self._probing:
            self._probing[confidence].num_waited += 1

    def num_tokens(self, confidence: Confidence) -> int:
        """How many tokens to draft now, 0 to max_tokens; see the module."""
        self._probed = self._is_settled = False
        self._measures = self._costs.wants_plain_pass
        if self._measures:
            return 0
        best = self._affordable(self._best(confidence), confidence)
        if best > 0:
            self._intervals.forget(confidence)
            found = self._stretched(best, confidence)
            self._is_settled = found == best
            return found
        probing = self._probing_at(confidence)
        probing.num_waited += 1
        if probing.num_waited < probing.interval and self._rates.has_tried(confidence):
            return 0
        probe = self._affordable(self._probe_length(confidence), confidence)
        self._probed = probe > 0
        return probe

    def observe(self, num_drafted: int, num_accepted: int, confidence: Confidence) -> None:
        """Take in a committed verdict; `num_drafted` is what was drafted, not what was asked for."""
        if not 0 <= num_accepted <= num_drafted <= self.max_tokens:
            raise ParameterError(
                "num_accepted, num_drafted",
                (num_accepted, num_drafted),
                f"0 <= num_accepted <= num_drafted <= {self.max_tokens}",
            )
        self._budget.settle(num_accepted + 1, self._relative_cost(num_drafted, confidence))
        if num_drafted == 0:
            return
        if self._probed:
            self._settle_probe(num_accepted == num_drafted, confidence)
        self._rates.observe(num_drafted, num_accepted, confidence)

    def observe_cost(self, width: int, seconds: float, load: Load = ALONE, *, ahead: bool = False) -> None:
        """One target pass over `width` tokens took `seconds`: forward, laws and verification together.

        ahead: it ran ahead of the host, and its draft is within. Of a request whose passes do so others say nothing.
        """
        if ahead == self._is_ahead:
            self._costs.observe_pass(width, seconds, load)

    def observe_draft_cost(self, num_drafted: int, seconds: float, confidence: Confidence = None) -> None:
        """Drafting `num_drafted` tokens took `seconds`; lookups, which a confidence tells, are kept apart."""
        if not self._is_ahead:
            self._costs.observe_draft(num_drafted, seconds, is_lookup=_is_lookup(confidence))

    def _stretched(self, best: int, confidence: Confidence) -> int:
        """`best`, or one more when it has been so for long; see the module."""
        if best != self._last_best:
            self._last_best, self._stretch_every, self._num_since_stretch = best, FIRST_STRETCH, 0
        self._num_since_stretch += 1
        if self._num_since_stretch < self._stretch_every or best == self.max_tokens:
            return best
        self._num_since_stretch = 0
        self._stretch_every = min(2 * self._stretch_every, LAST_STRETCH)
        return self._affordable(best + 1, confidence)

    def _best(self, confidence: Confidence) -> int:
        expected = self._rates.expected_accepted(confidence, self.max_tokens)
        speeds = [
            (1.0 + accepted) / self._relative_cost(length, confidence) for length, accepted in enumerate(expected)
        ]
        return max(range(len(speeds)), key=speeds.__getitem__)

    def _probe_length(self, confidence: Confidence) -> int:
        lengths = range(self.max_tokens, 0, -1)
        return next((length for length in lengths if self._relative_cost(length, confidence) <= 1.0 + PROBE_LOSS), 1)

    def _affordable(self, length: int, confidence: Confidence) -> int:
        while length > 0 and not self._budget.affords(self._relative_cost(length, confidence)):
            length -= 1
        return length

    def _relative_cost(self, num_drafted: int, confidence: Confidence) -> float:
        """A pass with `num_drafted` drafted tokens, in plain steps; see `costs.relative_cost`."""
        draft = self._costs.of_draft(num_drafted, is_lookup=_is_lookup(confidence))
        return relative_cost(self._costs, num_drafted, draft)

    def _probing_at(self, confidence: Confidence) -> Probing:
        if confidence not in self._probing:
            self._probing[confidence] = self._intervals.first(confidence)
        return self._probing[confidence]

    def _settle_probe(self, all_accepted: bool, confidence: Confidence) -> None:
        probing = self._probing_at(confidence)
        if all_accepted or self._rates.has_tried(confidence):
            probing.settle(paid=all_accepted)
            self._intervals.settle(confidence, probing.interval)
        else:
            probing.num_waited = 0
        if all_accepted:
            self._rates.forget_half(confidence)
        self._probed = False


def _is_lookup(confidence: Confidence) -> bool:
    return confidence is not None and confidence >= LOOKUP_CLASS
