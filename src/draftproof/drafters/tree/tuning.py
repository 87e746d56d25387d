"""Plans: topology, noise weight and sharpness of a draft, given or tuned on line.

A tuned policy chooses among a few arms for each draft, by what drafts of each have gained: the tokens accepted, less
those that the time they took would have been worth (`Anticipating.net`). So a tree that costs more passes of the
drafter than a chain must earn them. It may look at anything: under `keyed` the output can't depend on a draft, and
where a request may not look at the noise (at temperature 0), only arms without one are used. State is kept by kind of
request (greedy, below temperature 1, at 1 and above, looking or not), and is shared by the engine's requests: what a
weak drafter needs differs by temperature more than by text.

Rule: an arm's value is its mean gain, with forgetting over about HORIZON of its drafts; the arm of the largest
value + BONUS * sqrt(log(drafts) / drafts of the arm) is taken (UCB1, Auer et al. 2002).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Final, Protocol

from draftproof.drafters.tree.settings import Shares

WEIGHTS: Final = (1.0, 0.5, 0.0)
POWERS: Final = (1.0, 0.7)
HORIZON: Final = 200
BONUS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How a draft is grown. as_chain: one path, in place of the builder's tree."""

    shares: Shares
    as_chain: bool = False


class PlanPolicy(Protocol):
    """Chooses a `Plan` before each draft is grown."""

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Plan:
        """For the next draft of the slot's request. looks: it may look at the target's noise."""
        ...

    def observe(self, slot: int, gain: float) -> None:
        """What the draft was worth, in tokens."""
        ...

    def release(self, slot: int) -> None:
        """The slot's request is done."""
        ...


class FixedPlan:
    """Always the same."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Plan:
        """`plan`."""
        return self.plan

    def observe(self, slot: int, gain: float) -> None:
        """Nothing to learn."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


@dataclass(slots=True)
class _Arm:
    plan: Plan
    total: float = 0.0
    num_drafts: float = 0.0

    def add(self, gain: float) -> None:
        keep = 1.0 - 1.0 / HORIZON
        self.total = keep * self.total + gain
        self.num_drafts = keep * self.num_drafts + 1.0

    def upper(self, log_drafts: float) -> float:
        if self.num_drafts == 0:
            return float("inf")
        return self.total / self.num_drafts + BONUS * sqrt(log_drafts / self.num_drafts)


@dataclass(slots=True)
class _Arms:
    arms: list[_Arm] = field(default_factory=list)

    def best(self) -> _Arm:
        log_drafts = log(1.0 + sum(arm.num_drafts for arm in self.arms))
        return max(self.arms, key=lambda arm: arm.upper(log_drafts))


class TunedPlans:
    """See the module."""

    def __init__(self, arms: Sequence[Plan]) -> None:
        self.plans = tuple(arms)
        self._kinds: dict[tuple[str, bool], _Arms] = {}
        self._running: dict[int, _Arm] = {}

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Plan:
        """The arm that UCB takes for this kind of request."""
        kind = ("greedy" if temperature == 0 else "cool" if temperature < 1 else "warm", looks)
        if kind not in self._kinds:
            usable = [plan for plan in self.plans if looks or plan.shares.noise_weight == 0]
            self._kinds[kind] = _Arms([_Arm(plan) for plan in usable or self.plans])
        arm = self._running[slot] = self._kinds[kind].best()
        return arm.plan

    def observe(self, slot: int, gain: float) -> None:
        """Credits the arm of the slot's last draft, once."""
        arm = self._running.pop(slot, None)
        if arm is not None:
            arm.add(gain)

    def release(self, slot: int) -> None:
        """Forgets the slot's last draft."""
        self._running.pop(slot, None)

    def means(self) -> dict[str, dict[str, float]]:
        """Kind -> arm -> mean gain, for reports."""
        return {
            f"{kind}{', looking' if looks else ''}": {
                _named(arm.plan): arm.total / arm.num_drafts for arm in arms.arms if arm.num_drafts
            }
            for (kind, looks), arms in self._kinds.items()
            if any(arm.num_drafts for arm in arms.arms)
        }


def arms_of(
    noise_weight: float | None, sharpness: float | None, *, with_chains: bool, with_trees: bool = True
) -> tuple[Plan, ...]:
    """Every arm that has what is given. A chain's tokens are the same at any sharpness: it has one."""
    weights = WEIGHTS if noise_weight is None else (noise_weight,)
    powers = POWERS if sharpness is None else (sharpness,)
    trees = [Plan(Shares(weight, power)) for weight in weights for power in powers] if with_trees else []
    chains = [Plan(Shares(weight, powers[0]), as_chain=True) for weight in weights] if with_chains else []
    return (*trees, *chains)


def _named(plan: Plan) -> str:
    shape = "chain" if plan.as_chain else f"tree, sharpness {plan.shares.sharpness:g}"
    return f"{shape}, zeta {plan.shares.noise_weight:g}"
