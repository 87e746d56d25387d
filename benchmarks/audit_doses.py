"""Detection power against dose, for every mutant that is a sampler, in scored mode.

    python -m benchmarks.audit_doses [--num-runs 20] [--num-tokens 250000] [--processes 16] > docs/audits/doses.json
    python -m benchmarks.audit_doses --only "cumulative sum in low precision" --doses 0.01 --num-tokens 2000000

Each run is a whole audit at the default false-alarm rate, 1e-4, of a mutant diluted into the exact sampler; see
`draftproof.audit.doses`. A mutant whose own total variation is below a dose's has no such dose. Mutants go through the
processes one by one; their seeds don't depend on how many there are. Prints a line on stderr as each mutant is done,
and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

import numpy as np

from draftproof.audit.doses import POWER_ASKED, TOTAL_VARIATIONS, Dose, dose_curve, smallest_seen
from draftproof.audit.mutants import SAMPLERS

SEED = 7


def curve(index: int, total_variation: float, num_tokens: int, num_runs: int) -> list[Dose]:
    """One dose of one mutant."""
    place = TOTAL_VARIATIONS.index(total_variation)
    return dose_curve(
        SAMPLERS[index], (total_variation,), num_tokens=num_tokens, num_runs=num_runs, seed=SEED + 100 * place
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=20)
    parser.add_argument("--num-tokens", type=int, default=250_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=[mutant.name for mutant in SAMPLERS], metavar="MUTANT")
    parser.add_argument("--doses", nargs="*", type=float, choices=TOTAL_VARIATIONS, default=TOTAL_VARIATIONS)
    given = parser.parse_args()
    began, rows = time.perf_counter(), []
    with ProcessPoolExecutor(given.processes) as pool:
        asked = [
            pool.submit(curve, index, total_variation, given.num_tokens, given.num_runs)
            for total_variation in sorted(given.doses)
            for index, mutant in enumerate(SAMPLERS)
            if not given.only or mutant.name in given.only
        ]
        for done in as_completed(asked):
            for row in done.result():
                rows.append(row)
                print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
    order = {mutant.name: place for place, mutant in enumerate(SAMPLERS)}
    rows.sort(key=lambda row: (order[row.name], -row.total_variation))
    print(json.dumps(document(rows, given.num_tokens, given.num_runs, round(time.perf_counter() - began, 1))))


def document(rows: list[Dose], num_tokens: int, num_runs: int, seconds: float) -> dict[str, Any]:
    """The table, and what it comes to: at each dose how many mutants reach it, runs caught, median tokens."""
    doses = {}
    for total_variation in sorted({row.total_variation for row in rows}, reverse=True):
        here = [row for row in rows if row.total_variation == total_variation]
        tokens = [row.median_tokens for row in here if row.median_tokens is not None]
        doses[str(total_variation)] = {
            "mutants": len(here),
            "mutants_with_power": sum(row.power >= POWER_ASKED for row in here),
            "runs_caught": sum(row.num_caught for row in here),
            "runs": sum(row.num_runs for row in here),
            "median_tokens": int(np.median(tokens)) if tokens else None,
        }
    return {
        "num_tokens": num_tokens,
        "num_runs": num_runs,
        "seed": SEED,
        "power_asked": POWER_ASKED,
        "doses": doses,
        "smallest_seen": smallest_seen(rows),
        "own_total_variation": {row.name: row.total_variation / row.dose for row in rows},
        "rows": [asdict(row) for row in rows],
        "numpy": np.__version__,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
