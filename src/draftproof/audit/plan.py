"""The plan, made before the first token: hypotheses, false-alarm rate, the smallest bias seen, samples and time.

Two of three are given and the third follows: the number of tokens, or the total variation that shall be seen with
power 0.99. Nine tenths of the family-wise rate go to the tests at the end (Holm), one tenth to the e-process, which is
looked at on the way; nothing else is.

Formulas, at the level a of one pooled hypothesis:
- a set that the bias is aligned with, v = p(A)(1 - p(A)) at most 1/4: N = v ((z_{1-a/2} + z_{power}) / TV)^2.
- positions in K bins, the hardest direction: N = lambda / (4 TV^2), lambda the noncentrality that gives the power.
- the e-process on an aligned set: N = (log(1/a_e) + log of the number of bets) * 2 v / TV^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from draftproof import ParameterError
from draftproof.audit.battery import WITH_DRAFT, WITHOUT_DRAFT, Layout, num_hypotheses
from draftproof.audit.statistics.eprocess import BETS, CONCENTRATIONS
from draftproof.audit.statistics.needs import special, stats
from draftproof.audit.statistics.pit import NUM_BINS

ALPHA: Final = 1e-4
POWER: Final = 0.99
FIXED_SHARE: Final = 0.9
DEFAULT_TOKENS: Final = 250_000
OnPlan: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Called with the plan's values before the first token."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit will do.

    alpha: the family-wise false-alarm rate; alpha_fixed of it for the tests at the end, alpha_evidence for the
    e-process. num_hypotheses: of the tests at the end. num_tokens: to be scored. detectable_any, detectable_aligned:
    the total variation seen with `power` by the binned positions, whatever its direction along the order, and by a
    set that the bias is aligned with. tokens_per_second: measured on a pilot, None before. seed: the auditor's own.
    """

    alpha: float
    alpha_fixed: float
    alpha_evidence: float
    power: float
    num_hypotheses: int
    num_tokens: int
    detectable_any: float
    detectable_aligned: float
    knows_draft: bool
    seed: int
    tokens_per_second: float | None = None

    @property
    def seconds(self) -> float | None:
        """Estimated time, None without a pilot."""
        return self.num_tokens / self.tokens_per_second if self.tokens_per_second else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "seconds": self.seconds}


def make_plan(
    layout: Layout,
    *,
    num_tokens: int | None = None,
    detect: float | None = None,
    alpha: float = ALPHA,
    power: float = POWER,
    seed: int = 0,
    tokens_per_second: float | None = None,
) -> Plan:
    """The plan for a number of tokens, or for a total variation in (0, 1) to detect; not both.

    Raises ParameterError.
    """
    if num_tokens is not None and detect is not None:
        raise ParameterError("detect", detect, "left out where a budget is given", "one follows from the other")
    if not 0 < alpha < 0.5:
        raise ParameterError("alpha", alpha, "a rate in (0, 0.5)")
    if not 0.5 <= power < 1:
        raise ParameterError("power", power, "in [0.5, 1)")
    if detect is not None and not 0 < detect < 1:
        raise ParameterError("detect", detect, "a total variation in (0, 1)")
    if num_tokens is not None and num_tokens < 1:
        raise ParameterError("budget", num_tokens, "1 token or more")
    level = pooled_level(layout, alpha)
    wanted = tokens_to_detect(detect, level, power) if detect is not None else num_tokens or DEFAULT_TOKENS
    return Plan(
        alpha=alpha,
        alpha_fixed=alpha * FIXED_SHARE,
        alpha_evidence=alpha * (1 - FIXED_SHARE),
        power=power,
        num_hypotheses=num_hypotheses(layout),
        num_tokens=wanted,
        detectable_any=detectable_any(wanted, level, power),
        detectable_aligned=detectable_aligned(wanted, level, power),
        knows_draft=layout.knows_draft,
        seed=seed,
        tokens_per_second=tokens_per_second,
    )


def pooled_level(layout: Layout, alpha: float) -> float:
    """The level at which one pooled hypothesis is tested when no other one is rejected."""
    num_pooled = len(WITHOUT_DRAFT) + (len(WITH_DRAFT) if layout.knows_draft else 0)
    return alpha * FIXED_SHARE * (0.5 if len(layout.cells) > 1 else 0.8) / num_pooled


def detectable_aligned(num_tokens: int, level: float, power: float, variance: float = 0.25) -> float:
    """The total variation that a set's sum sees; at most 1."""
    return min(_reach(level, power) * math.sqrt(variance / num_tokens), 1.0)


def detectable_any(num_tokens: int, level: float, power: float, num_bins: int = NUM_BINS) -> float:
    """The total variation that the binned positions see in the hardest direction; at most 1."""
    return min(math.sqrt(noncentrality(level, power, num_bins) / (4 * num_tokens)), 1.0)


def tokens_to_detect(total_variation: float, level: float, power: float) -> int:
    """Tokens for the binned positions to see it, in the hardest direction."""
    return math.ceil(noncentrality(level, power, NUM_BINS) / (4 * total_variation**2))


def tokens_for_evidence(total_variation: float, alpha: float, num_parts: int, variance: float = 0.25) -> int:
    """Tokens after which the e-process on an aligned set is expected to reach 1/alpha."""
    needed = math.log(1 / alpha) + math.log(num_parts * max(len(BETS), len(CONCENTRATIONS)))
    return math.ceil(needed * 2 * variance / total_variation**2)


def noncentrality(level: float, power: float, num_bins: int) -> float:
    """What a chi-square of num_bins - 1 degrees of freedom needs to reach `power` at `level`, to 1e-6."""
    threshold = float(stats().chi2.isf(level, num_bins - 1))
    low, high = 0.0, 10 * threshold + 100
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stats().ncx2.sf(threshold, num_bins - 1, middle) < power else (low, middle)
    return high


def _reach(level: float, power: float) -> float:
    return float(special().ndtri(1 - level / 2) + special().ndtri(power))
