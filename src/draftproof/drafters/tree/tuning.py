"""Noise weight and sharpness: given, or tuned on line.

A tuned policy chooses among a few arms (`ARMS`) for each pass, by how many tokens trees built with each were accepted.
It may look at anything: under `keyed` the output can't depend on a tree, and where a request's verifier takes no look
at the noise, only arms without one are used, whose trees are point masses. State is kept by kind of request (greedy,
below temperature 1, at 1 and above, looking or not), and is shared by the engine's requests: what a weak drafter needs
differs by temperature more than by text.

Rule: an arm's value is the mean of the tokens it got accepted, with forgetting over about HORIZON of its passes; the
arm of the largest value + BONUS * sqrt(log(passes) / passes of the arm) is taken (UCB1, Auer et al. 2002).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt
from typing import Final, Protocol

from draftproof.drafters.tree.settings import Shares

ARMS: Final = tuple(Shares(weight, sharpness) for weight in (1.0, 0.5, 0.0) for sharpness in (1.0, 0.7))
HORIZON: Final = 200
BONUS: Final = 0.5


class SharesPolicy(Protocol):
    """Chooses `Shares` before each tree is built."""

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Shares:
        """For the next tree of the slot's request. looks: it may look at the target's noise."""
        ...

    def observe(self, slot: int, num_accepted: int) -> None:
        """How many of the tree's tokens were accepted."""
        ...

    def release(self, slot: int) -> None:
        """The slot's request is done."""
        ...


class FixedShares:
    """Always the same."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Shares:
        """`shares`."""
        return self.shares

    def observe(self, slot: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


@dataclass(slots=True)
class _Arm:
    shares: Shares
    total: float = 0.0
    num_passes: float = 0.0

    def add(self, num_accepted: int) -> None:
        keep = 1.0 - 1.0 / HORIZON
        self.total = keep * self.total + num_accepted
        self.num_passes = keep * self.num_passes + 1.0

    def upper(self, log_passes: float) -> float:
        if self.num_passes == 0:
            return float("inf")
        return self.total / self.num_passes + BONUS * sqrt(log_passes / self.num_passes)


@dataclass(slots=True)
class _Arms:
    arms: list[_Arm] = field(default_factory=list)

    def best(self) -> _Arm:
        log_passes = log(1.0 + sum(arm.num_passes for arm in self.arms))
        return max(self.arms, key=lambda arm: arm.upper(log_passes))


class TunedShares:
    """See the module."""

    def __init__(self, arms: tuple[Shares, ...] = ARMS) -> None:
        self._all = arms
        self._kinds: dict[tuple[str, bool], _Arms] = {}
        self._running: dict[int, _Arm] = {}

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Shares:
        """The arm that UCB takes for this kind of request."""
        kind = ("greedy" if temperature == 0 else "cool" if temperature < 1 else "warm", looks)
        if kind not in self._kinds:
            usable = [shares for shares in self._all if looks or shares.noise_weight == 0]
            self._kinds[kind] = _Arms([_Arm(shares) for shares in usable])
        arm = self._running[slot] = self._kinds[kind].best()
        return arm.shares

    def observe(self, slot: int, num_accepted: int) -> None:
        """Credits the arm of the slot's last tree, once."""
        arm = self._running.pop(slot, None)
        if arm is not None:
            arm.add(num_accepted)

    def release(self, slot: int) -> None:
        """Forgets the slot's last tree."""
        self._running.pop(slot, None)

    def means(self) -> dict[str, dict[str, float]]:
        """Kind -> arm -> mean accepted tokens, for reports."""
        return {
            f"{kind}{', looking' if looks else ''}": {
                f"zeta {arm.shares.noise_weight:g}, sharpness {arm.shares.sharpness:g}": arm.total / arm.num_passes
                for arm in arms.arms
                if arm.num_passes
            }
            for (kind, looks), arms in self._kinds.items()
            if any(arm.num_passes for arm in arms.arms)
        }
