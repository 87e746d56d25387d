"""Detection power against dose: a mutant diluted into the exact sampler until its total variation is what is asked.

    curve = dose_curve(GreedyBonus, (0.1, 0.05, 0.02, 0.01), num_tokens=250_000, num_runs=20, seed=0)

A dose is a share of requests: each is the mutant's, whole, with that probability, else the exact sampler's. Its total
variation is that share of the mutant's own visible one (`visible_bias`), so a mutant whose own is smaller has no such
dose and gives no row. Every run is a whole audit of scored mode.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from draftproof.audit.battery import Layout, adjusted_p, hypotheses
from draftproof.audit.mutants.run import LENGTH, dosed, scores_of, visible_bias
from draftproof.audit.mutants.sampler import ExactSampler, instance_tables
from draftproof.audit.plan import ALPHA, FIXED_SHARE
from draftproof.audit.statistics.eprocess import EProcess

TOTAL_VARIATIONS: Final = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
POWER_ASKED: Final = 0.9
_LAYOUT: Final = Layout(knows_draft=True, by_offset=True)
_CHECKS: Final = 25
_CLEARLY: Final = 1.3  # how far a counted deviation must stand above what counting alone gives


@dataclass(frozen=True, slots=True)
class Dose:
    """What became of `num_runs` audits. dose: share of wrong requests; median_tokens: until caught, over those caught,
    None where none was."""

    name: str
    total_variation: float
    dose: float
    num_tokens: int
    num_runs: int
    num_caught: int
    median_tokens: int | None

    @property
    def power(self) -> float:
        return self.num_caught / self.num_runs


def own_bias(mutant: type[ExactSampler], seed: int, num_requests: int = 25_000) -> float:
    """The mutant's visible total variation at full dose; 0 where counting can't tell it from the exact sampler's."""
    seen, noise = visible_bias(mutant, num_requests, seed)
    return max(seen - noise, 0.0) if seen > _CLEARLY * noise else 0.0


def detects(
    mutant: type[ExactSampler], dose: float, num_requests: int, seed: int, instance: str | None = None
) -> tuple[bool, int]:
    """(whether an audit of `num_requests` requests calls it not lossless, tokens until it did).

    instance: the exact sampler's tables, where that is audited.
    """
    tables = instance_tables(instance or mutant.instance)
    emission = (
        dosed(mutant, dose, num_requests, seed) if instance is None else mutant(*tables).run(num_requests, LENGTH, seed)
    )
    scores = scores_of(emission, *tables, seed=seed + 1)
    evidence, threshold = EProcess(knows_draft=True), math.log(1 / (ALPHA * (1 - FIXED_SHARE)))
    places, part = np.arange(len(scores)), math.ceil(len(scores) / _CHECKS)
    for start in range(0, len(scores), part):
        evidence.update(scores.where((places >= start) & (places < start + part)))
        if float(evidence.peak_log_e) >= threshold:
            return True, min(start + part, len(scores))
    return min(adjusted_p(hypotheses(scores, _LAYOUT))) <= ALPHA * FIXED_SHARE, len(scores)


def dose_curve(
    mutant: type[ExactSampler],
    total_variations: Sequence[float],
    *,
    num_tokens: int,
    num_runs: int,
    seed: int,
    num_bias_requests: int = 25_000,
) -> list[Dose]:
    """One row for each total variation that the mutant reaches, in the order given.

    num_tokens: of each of the `num_runs` audits. num_bias_requests: outputs that the mutant's own is counted on.
    """
    bias = own_bias(mutant, seed, num_bias_requests)
    rows = []
    for place, total_variation in enumerate(total_variations):
        if total_variation > bias:
            continue
        dose = total_variation / bias
        runs = [
            detects(mutant, dose, math.ceil(num_tokens / LENGTH), _seed(seed, place, run)) for run in range(num_runs)
        ]
        tokens = [count for caught, count in runs if caught]
        rows.append(
            Dose(mutant.name, total_variation, dose, num_tokens, num_runs, len(tokens),
                 int(statistics.median(tokens)) if tokens else None)
        )  # fmt: skip
    return rows


def smallest_seen(rows: Sequence[Dose], power: float = POWER_ASKED) -> dict[str, float | None]:
    """For each mutant, the smallest total variation down to which every dose reaches `power`; None where none does."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(row.name for row in rows):
        found[name] = None
        for row in sorted((r for r in rows if r.name == name), key=lambda r: -r.total_variation):
            if row.power < power:
                break
            found[name] = row.total_variation
    return found


def _seed(seed: int, place: int, run: int) -> int:
    """Distinct for each run of a curve, with room between: a run takes a few numbers from its seed on."""
    return 1_000_003 * (seed + 1) + 10_007 * place + 11 * run
