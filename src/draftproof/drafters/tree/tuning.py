"""Noise weight and sharpness of a draft, given or tuned on line.

A tuned policy learns from every verdict about all arms at once: the token that was emitted had a share under each arm,
whichever grew the draft, since the drafter's law and the noise are the same. So nothing is tried out, and no draft is
spent on a worse arm.

Rule: an arm's loss is the mean of -log share of the emitted tokens, capped at MAX_LOSS (a drafter that leaves a token
out loses no more by it), with forgetting over about HORIZON tokens. The arm of the smallest loss is taken; the present
one stays unless it is beaten by MARGIN. A best-first tree is the best one for shares that are the true probabilities
(Sequoia, 2402.12374), and those have the smallest expected loss of all: a proper score (Good 1952).
It may look at anything: under `keyed` the output can't depend on a draft. Where a request may not look at the noise (at
temperature 0), only arms without one are used. State is kept by kind of request (greedy, below temperature 1, at 1 and
above, looking or not), and is shared by the engine's requests: what a weak drafter needs differs by temperature more
than by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.drafters.tree.settings import Shares

WEIGHTS: Final = (0.8, 1.0, 0.5, 0.0)
POWERS: Final = (1.0, 0.7)
HORIZON: Final = 400
MAX_LOSS: Final = 6.0
MARGIN: Final = 0.01
"""In nats a token."""
NUM_FIRST: Final = 64
EVERY: Final = 16
"""After NUM_FIRST drafts of a kind, one in EVERY is learned from: an arm's share costs a pass over the vocabulary."""


class SharesPolicy(Protocol):
    """Chooses `Shares` before each draft is grown."""

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Shares:
        """For the next draft of the slot's request. looks: it may look at the target's noise."""
        ...

    def arms(self, slot: int) -> tuple[Shares, ...]:
        """The arms whose losses `observe` wants for the slot's last draft; none if there is nothing to learn."""
        ...

    def observe(self, slot: int, log_shares: NDArray[np.float64]) -> None:
        """[arms] log shares that they gave an emitted token."""
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

    def arms(self, slot: int) -> tuple[Shares, ...]:
        """None."""
        return ()

    def observe(self, slot: int, log_shares: NDArray[np.float64]) -> None:
        """Nothing to learn."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""


class _Kind:
    """Losses of the arms that one kind of request may use."""

    def __init__(self, arms: tuple[Shares, ...]) -> None:
        self.arms = arms
        self.losses = np.zeros(len(arms))
        self.num_seen = self.num_drafts = 0
        self._present = 0

    def add(self, log_shares: NDArray[np.float64]) -> None:
        self.num_seen += 1
        losses = np.minimum(-log_shares, MAX_LOSS)
        self.losses += (losses - self.losses) / min(self.num_seen, HORIZON)

    def best(self) -> Shares:
        best = int(np.argmin(self.losses))
        if self.losses[best] < self.losses[self._present] - MARGIN:
            self._present = best
        return self.arms[self._present]


class TunedShares:
    """See the module. arms: the first is taken before anything is known."""

    def __init__(self, arms: Sequence[Shares]) -> None:
        self._all = tuple(arms)
        self._kinds: dict[tuple[str, bool], _Kind] = {}
        self._running: dict[int, _Kind] = {}

    def choose(self, slot: int, temperature: float, *, looks: bool) -> Shares:
        """The arm of the smallest loss so far, for this kind of request."""
        name = ("greedy" if temperature == 0 else "cool" if temperature < 1 else "warm", looks)
        if name not in self._kinds:
            usable = tuple(arm for arm in self._all if looks or arm.noise_weight == 0)
            self._kinds[name] = _Kind(usable or self._all)
        kind = self._running[slot] = self._kinds[name]
        kind.num_drafts += 1
        return kind.best()

    def arms(self, slot: int) -> tuple[Shares, ...]:
        """All that the slot's kind of request may use, where this draft is to be learned from."""
        kind = self._running.get(slot)
        is_wanted = kind is not None and (kind.num_drafts <= NUM_FIRST or kind.num_drafts % EVERY == 0)
        return kind.arms if kind is not None and is_wanted else ()

    def observe(self, slot: int, log_shares: NDArray[np.float64]) -> None:
        """Takes in an emitted token."""
        self._running[slot].add(log_shares)

    def release(self, slot: int) -> None:
        """Forgets the slot's last draft."""
        self._running.pop(slot, None)

    def means(self) -> dict[str, dict[str, float]]:
        """Kind -> arm -> mean loss in nats, for reports."""
        return {
            f"{name}{', looking' if looks else ''}": {
                f"zeta {arm.noise_weight:g}, sharpness {arm.sharpness:g}": float(loss)
                for arm, loss in zip(kind.arms, kind.losses, strict=True)
            }
            for (name, looks), kind in self._kinds.items()
            if kind.num_seen
        }


def arms_of(noise_weight: float | None, sharpness: float | None) -> tuple[Shares, ...]:
    """Every arm that has what is given."""
    weights = WEIGHTS if noise_weight is None else (noise_weight,)
    powers = POWERS if sharpness is None else (sharpness,)
    return tuple(Shares(weight, power) for weight in weights for power in powers)
