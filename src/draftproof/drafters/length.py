"""How many tokens to draft: policies that choose before drafting, which every verifier allows.

A policy sees the drafter's confidence (a function of the context) and committed verdicts, never a
token of the draft whose length it chooses. So, given the past, length and draft noise are independent,
and a ratio test stays exact. Rules that look at drafted tokens are `stop_rule.StopRule`s.

The engine asks one policy per request (`for_request`):
    num_tokens = policy.num_tokens(confidence)      before drafting; 0 means a plain step
    policy.observe(num_drafted, num_accepted, confidence)   after each commit, plain steps too
    policy.observe_cost(width, seconds, load)       the time of one target pass over `width` tokens, and who shared it
    policy.observe_draft_cost(num_drafted, seconds, confidence)     the time that the drafter took
"""

from __future__ import annotations

from typing import Protocol

from draftproof.drafters.costs import ALONE, Load
from draftproof.errors import ParameterError


class LengthPolicy(Protocol):
    """Chooses the draft's length before a token of it is drawn."""

    max_tokens: int
    """The longest draft that the policy ever asks for."""

    def for_request(self) -> LengthPolicy:
        """The policy object of a new request, with the same settings."""
        ...

    def num_tokens(self, confidence: float | None) -> int:
        """How many tokens to draft now, 0 to max_tokens.

        confidence: the drafter's `confidence` for its next proposal.
        """
        ...

    def observe(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """A pass was committed: `num_accepted` of `num_drafted` tokens, drafted at `confidence`."""
        ...

    def observe_cost(self, width: int, seconds: float, load: Load = ALONE) -> None:
        """One target pass over `width` tokens of this request, shared as `load` says, took `seconds`."""
        ...

    def observe_draft_cost(self, num_drafted: int, seconds: float, confidence: float | None = None) -> None:
        """Drafting `num_drafted` tokens at `confidence` took `seconds`."""
        ...


class FixedLength:
    """Always `num_tokens` tokens."""

    def __init__(self, num_tokens: int) -> None:
        if num_tokens < 0:
            raise ParameterError("num_speculative_tokens", num_tokens, "0 or more tokens")
        self.max_tokens = num_tokens

    def for_request(self) -> FixedLength:
        """Itself: it has no state."""
        return self

    def num_tokens(self, confidence: float | None) -> int:
        """`max_tokens`, whatever the confidence."""
        return self.max_tokens

    def observe(self, num_drafted: int, num_accepted: int, confidence: float | None) -> None:
        """Nothing to learn."""

    def observe_cost(self, width: int, seconds: float, load: Load = ALONE) -> None:
        """Nothing to learn."""

    def observe_draft_cost(self, num_drafted: int, seconds: float, confidence: float | None = None) -> None:
        """Nothing to learn."""
