"""The audit audits itself: every mutant must be caught in the mode named for it, and exact engines must not be.

- rule mode: the mutants of `verify.mutants`, by enumeration, and by samples from their enumerated laws;
- scored mode: wrong samplers over tables, at full dose and, where the bias is visible, diluted into the exact sampler
  until the total variation is 0.01; and engines whose chain goes wrong inside a block; then detection power against
  dose (`doses`);
- greedy, replay, paired and state modes: small wrong engines, each with its right twin.

`run_self(quick=True)` takes two minutes on one core; its parts are tests of their own (test_mutants, test_modes,
test_doses, and tests/exact/test_mutants.py for the rules). The full one adds doses and runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from draftproof.audit.doses import POWER_ASKED, TOTAL_VARIATIONS, Dose, detects, dose_curve, own_bias, smallest_seen
from draftproof.audit.mutants import SAMPLERS
from draftproof.audit.mutants.run import LENGTH, trials
from draftproof.audit.mutants.sampler import ExactSampler
from draftproof.audit.plan import ALPHA
from draftproof.audit.rule_sampling import joint_p_value
from draftproof.audit.verdict import Audit, Finding, Plot, Table, Verdict, decide
from draftproof.verify.mutants import all_mutants

Progress = Callable[[int, int], None]
DOSED_BIAS: Final = 0.01
DOSE_TOKENS: Final = 250_000
QUICK_DOSES: Final = (0.1, 0.05, 0.02)
_FEW_REQUESTS: Final = 3000


@dataclass(frozen=True, slots=True)
class Caught:
    """What became of one mutant at one dose. tokens: scored (sequences, in rule mode), fewer where evidence ended it.
    total_variation: of the mutant at that dose, None where the mode has none. right_passes: the right twin's verdict.
    """

    mode: str
    name: str
    after: str
    dose: float
    total_variation: float | None
    tokens: int
    caught: bool
    right_passes: bool


def run_self(*, quick: bool = True, seed: int = 0, progress: Progress | None = None) -> Audit:
    """Runs the self-audit. A mutant that survives at full dose, or a false alarm, is a finding."""
    began = time.perf_counter()
    jobs = _jobs(quick, seed)
    records: list[Caught] = []
    doses: list[Dose] = []
    num_done = 0
    try:
        for number, job in enumerate(jobs):
            found = job()
            if isinstance(found, Caught):
                records.append(found)
            else:
                doses += found
            num_done += 1
            if progress is not None:
                progress(number + 1, len(jobs))
    except KeyboardInterrupt:
        pass
    return _audit(records, doses, num_done == len(jobs), quick, seed, time.perf_counter() - began)


def _jobs(quick: bool, seed: int) -> list[Callable[[], Caught | list[Dose]]]:
    num_tokens = 100_000
    jobs: list[Callable[[], Caught | list[Dose]]] = [
        lambda m=mutant: _rule(m, 1.0, 20_000, seed)  # type: ignore[misc]
        for mutant in all_mutants()
    ]
    jobs += [lambda m=mutant: sampled(m, 1.0, num_tokens, seed) for mutant in SAMPLERS]  # type: ignore[misc]
    jobs += [lambda t=trial: _trial(t, seed) for trial in trials(4000 if quick else 20_000)]  # type: ignore[misc]
    if not quick:
        jobs += [lambda m=mutant: _rule(m, 0.0, DOSE_TOKENS, seed) for mutant in all_mutants()]  # type: ignore[misc]
        jobs += [lambda m=mutant: sampled(m, 0.0, DOSE_TOKENS, seed) for mutant in SAMPLERS]  # type: ignore[misc]
    jobs += [lambda m=mutant: _doses(m, quick, seed) for mutant in SAMPLERS]  # type: ignore[misc]
    return jobs


def _doses(mutant: type[ExactSampler], quick: bool, seed: int) -> list[Dose]:
    if quick:
        return dose_curve(
            mutant, QUICK_DOSES, num_tokens=40_000, num_runs=2, seed=seed + 13, num_bias_requests=_FEW_REQUESTS
        )
    return dose_curve(mutant, TOTAL_VARIATIONS, num_tokens=DOSE_TOKENS, num_runs=5, seed=seed + 13)


def sampled(mutant: type[ExactSampler], dose: float, num_tokens: int, seed: int) -> Caught:
    """A wrong sampler in scored mode. dose 0: diluted until its visible total variation is DOSED_BIAS.

    Where it is less than that at full dose there is nothing to dilute: such a record has dose 0 and counts as caught.
    """
    bias = own_bias(mutant, seed + 5, _FEW_REQUESTS if dose == 1.0 else 25_000)
    if dose == 0.0:
        if bias < DOSED_BIAS:
            return Caught("scored", mutant.name, mutant.after, 0.0, bias, 0, True, True)
        dose = DOSED_BIAS / bias
    num_requests = math.ceil(num_tokens / LENGTH)
    caught, tokens = detects(mutant, dose, num_requests, seed + 11)
    right_passes = not detects(ExactSampler, 1.0, num_requests, seed + 12, mutant.instance)[0]
    return Caught("scored", mutant.name, mutant.after, dose, bias * dose, tokens, caught, right_passes)


def _rule(mutant: Any, dose: float, num_sequences: int, seed: int) -> Caught:
    """A mutant of the rules. Full dose: its enumerated law must differ. dose 0: samples from its law, diluted until the
    total variation is DOSED_BIAS, must; where it is less than that at full dose, enumeration alone sees it.
    """
    wrong, right = mutant.wrong(), mutant.right()
    bias = float(wrong.total_variation)
    exact = {sequence: float(probability) for sequence, probability in wrong.expected.items()}
    sequences = sorted(set(wrong.law) | set(exact), key=str)
    ours = np.array([float(wrong.law.get(sequence, 0)) for sequence in sequences])
    theirs = np.array([exact.get(sequence, 0.0) for sequence in sequences])
    right_passes = right.total_variation == 0
    if dose == 0.0:
        if bias < DOSED_BIAS:
            return Caught("rule", mutant.name, mutant.after, 0.0, bias, 0, True, right_passes)
        dose = DOSED_BIAS / bias
        mixed = dose * ours + (1 - dose) * theirs
        random = np.random.default_rng([seed, len(sequences)])
        counts = random.multinomial(num_sequences, mixed / mixed.sum())
        drawn = [sequence for sequence, count in zip(sequences, counts, strict=True) for _ in range(count)]
        caught = joint_p_value(drawn, exact) <= ALPHA
        return Caught("rule", mutant.name, mutant.after, dose, bias * dose, num_sequences, caught, right_passes)
    return Caught("rule", mutant.name, mutant.after, 1.0, bias, 0, wrong.total_variation > 0, right_passes)


def _trial(trial: Any, seed: int) -> Caught:
    wrong, right = trial.run(True, seed), trial.run(False, seed)
    tokens = int(wrong.numbers.get("tokens", wrong.numbers.get("tokens compared", 0)))
    return Caught(
        trial.mode,
        trial.name,
        trial.after,
        1.0,
        None,
        tokens,
        wrong.verdict is Verdict.NOT_LOSSLESS,
        right.verdict is Verdict.CONSISTENT,
    )


def _audit(records: list[Caught], doses: list[Dose], complete: bool, quick: bool, seed: int, seconds: float) -> Audit:
    full = [record for record in records if record.dose == 1.0]
    diluted = [r for r in records if 0.0 < r.dose < 1.0]
    findings = [
        Finding("a mutant survives", f"{r.mode}: {r.name}", 0.0, r.total_variation or 0.0, "total variation")
        for r in full
        if not r.caught
    ]
    findings += [
        Finding("a right engine is called not lossless", f"{r.mode}: twin of {r.name}", 0.0, 1.0, "")
        for r in records
        if not r.right_passes
    ]
    at_dose = {
        f"caught at total variation {DOSED_BIAS}, {mode} mode": f"{sum(r.caught for r in some)} of {len(some)}"
        for mode in ("rule", "scored")
        if (some := [r for r in diluted if r.mode == mode])
    }
    tokens = [r.tokens for r in full if r.mode == "scored" and r.caught and r.tokens]
    by_mode = {
        f"mutants, {mode} mode": f"{sum(r.caught for r in some)} of {len(some)} caught"
        for mode in ("rule", "scored", "greedy", "replay", "paired", "state")
        if (some := [r for r in full if r.mode == mode])
    }
    rows = tuple(
        (r.mode, r.name, r.after, r.dose, r.total_variation, r.tokens, r.caught, r.right_passes) for r in records
    )
    columns = ("mode", "mutant", "after", "dose", "total variation", "tokens", "caught", "right twin passes")
    return Audit(
        mode="self",
        engine="the audit itself",
        verdict=decide(findings, complete=complete),
        summary=f"{sum(r.caught for r in full)} of {len(full)} mutants are caught",
        findings=tuple(findings),
        plan={"alpha": ALPHA, "seed": seed, "quick": quick},
        numbers={
            **by_mode,
            "right twins that pass": f"{sum(r.right_passes for r in records)} of {len(records)}",
            "median tokens to detect, scored mode": statistics.median(tokens) if tokens else 0,
            **at_dose,
            **_smallest(doses),
        },
        tables=(Table("Mutants", columns, rows), *_power_table(doses)),
        plots=(*_plots(full), *_power_plot(doses)),
        limits=("mutants that nobody has thought of",),
        seconds=seconds,
    )


def _plots(full: list[Caught]) -> tuple[Plot, ...]:
    points = sorted((r.total_variation, float(r.tokens)) for r in full if r.total_variation and r.tokens)
    if len(points) < 2:
        return ()
    x, y = tuple(p[0] for p in points), tuple(p[1] for p in points)
    return (Plot("Tokens until a mutant is caught", "log-line", "total variation", "tokens", x, y),)


def _smallest(doses: list[Dose]) -> dict[str, Any]:
    seen = smallest_seen(doses)
    found = [value for value in seen.values() if value is not None]
    if not found:
        return {}
    return {
        f"smallest total variation seen with power {POWER_ASKED:g}": min(found),
        "the same, median of the mutants": statistics.median_high(found),
        "mutants that reach a dose and are never seen so": len(seen) - len(found),
    }


def _by_dose(doses: list[Dose]) -> list[tuple[float, list[Dose]]]:
    """The rows of each total variation, the largest first."""
    values = sorted({row.total_variation for row in doses}, reverse=True)
    return [(value, [row for row in doses if row.total_variation == value]) for value in values]


def _power_table(doses: list[Dose]) -> tuple[Table, ...]:
    rows = tuple(
        (
            value,
            len(some),
            sum(row.num_caught for row in some) / sum(row.num_runs for row in some),
            sum(row.power >= POWER_ASKED for row in some),
            _median_tokens(some),
        )
        for value, some in _by_dose(doses)
    )
    columns = ("total variation", "mutants that reach it", "power", f"seen with power {POWER_ASKED:g}", "median tokens")
    return (Table("Detection power against dose, scored mode", columns, rows),) if rows else ()


def _median_tokens(rows: list[Dose]) -> int | None:
    tokens = [row.median_tokens for row in rows if row.median_tokens is not None]
    return int(statistics.median(tokens)) if tokens else None


def _power_plot(doses: list[Dose]) -> tuple[Plot, ...]:
    points = [
        (value, sum(row.num_caught for row in some) / sum(row.num_runs for row in some))
        for value, some in reversed(_by_dose(doses))
    ]
    if len(points) < 2:
        return ()
    x, y = tuple(p[0] for p in points), tuple(p[1] for p in points)
    return (Plot("Detection power against dose", "line", "total variation", "power", x, y),)


def to_records(audit: Audit) -> list[dict[str, Any]]:
    """The table's rows as mappings, for JSON."""
    return [dict(zip(audit.tables[0].columns, row, strict=True)) for row in audit.tables[0].rows]
