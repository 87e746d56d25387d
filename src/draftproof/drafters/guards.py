"""What keeps adaptive drafting close to plain decoding where drafts can't be guessed: a budget, and probes.

- `LossBudget`, in plain steps: it starts at FIRST_BUDGET, earns what a pass saved and LOSS_SHARE of each emitted token,
  pays what a pass lost, and gains end at MOST_BUDGET. A draft that could overdraw it, were none of its tokens
  accepted, is made smaller or left out. So in all, by the costs as they were known at each step, at most FIRST_BUDGET +
  LOSS_SHARE * emitted plain steps are lost; and at most MOST_BUDGET of what was gained before. A few drafts that fail
  in a row, each for half a plain step, must not end what pays on average. It never owes more than MOST_DEBT: a draft
  that a busy machine stretched over tens of steps is over, and must not keep hundreds of tokens from being drafted. And
  plain steps save LOSS_SHARE each up to MOST_SAVED, so that a drafter that is taken to be slow is measured again.
- `Probing`: where drafting does not pay, it is tried again after 4, 8, 16, … up to 128 steps; a probe that pays brings
  the interval back to 4. A new request begins with a quarter of the interval that the engine has come to (`Intervals`):
  on a stream of short requests that nobody can guess, each would else pay for the short intervals again. A probe drafts
  as much as a pass takes for PROBE_LOSS of a plain step, one token at least.
"""

from __future__ import annotations

from typing import Final

FIRST_BUDGET: Final = 2.0
MOST_BUDGET: Final = 24.0
MOST_DEBT: Final = 1.0
"""Plain steps, as all of these."""
MOST_SAVED: Final = 128.0
LOSS_SHARE: Final = 0.03
FIRST_INTERVAL: Final = 4
LAST_INTERVAL: Final = 128
CARRIED: Final = 4
"""A new request begins with the engine's interval over this."""
PROBE_LOSS: Final = 0.1
"""A probe costs at most about this many plain steps."""


class LossBudget:
    """What may still be lost to drafts that are not accepted, in plain steps."""

    def __init__(self) -> None:
        self.steps = FIRST_BUDGET

    def settle(self, num_emitted: int, relative_cost: float) -> None:
        """A pass emitted `num_emitted` tokens and cost `relative_cost` plain steps."""
        is_plain = num_emitted == 1 and relative_cost <= 1.0
        earned = num_emitted - relative_cost + LOSS_SHARE * num_emitted
        most = MOST_SAVED if is_plain else max(MOST_BUDGET, self.steps)
        self.steps = max(-MOST_DEBT, min(most, self.steps + earned))

    def affords(self, relative_cost: float) -> bool:
        """Whether a pass of that cost may come to nothing."""
        return relative_cost - 1.0 - LOSS_SHARE <= self.steps


class Probing:
    """When to try again where drafting does not pay."""

    def __init__(self, interval: int = FIRST_INTERVAL) -> None:
        self.interval = interval
        self.num_waited = 0

    def settle(self, *, paid: bool) -> None:
        """A probe is over."""
        self.num_waited = 0
        self.interval = FIRST_INTERVAL if paid else min(2 * self.interval, LAST_INTERVAL)


class Intervals:
    """What probing has come to, by confidence: of all requests of an engine, or of one."""

    def __init__(self) -> None:
        self._last: dict[float | None, int] = {}

    def first(self, confidence: float | None) -> Probing:
        """A new request's probing."""
        return Probing(max(FIRST_INTERVAL, self._last.get(confidence, 0) // CARRIED))

    def settle(self, confidence: float | None, interval: int) -> None:
        """A request's interval is that now."""
        self._last[confidence] = interval

    def forget(self, confidence: float | None) -> None:
        """Drafting pays."""
        self._last.pop(confidence, None)
