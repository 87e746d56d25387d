"""Full audits of engines that are exact: p-values must be uniform, and none may be called not lossless.

    python -m benchmarks.audit_exact_runs [--num-runs 100] [--processes 2] > docs/audits/exact-runs.json

Each run is a whole audit in scored mode, with a seed of its own: four in five of an exact rejection sampler over tables
(50,000 tokens), one in five of draftproof with a draft model under one of its verifiers, at three samplers, models as
in `audit_packages` (4,000 tokens). Every pooled statistic gives a p-value a run, and these are held against the uniform
law by Kolmogorov and Smirnov's test, Holm over all statistics at 1e-3: pit's three are uniform up to their bins, the
sums' normal tails err towards large p-values only, so that theirs are tested for being too small. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import kstest

from benchmarks.audit_packages import PROMPTS, llama, ours, versions, without_last_layer
from draftproof import SamplingParams
from draftproof.audit import Audit, Generation, Request, Scorer, TableModel, TorchModel, audit_scored
from draftproof.audit.battery import ALL
from draftproof.audit.mutants.sampler import ExactSampler, instance_tables
from draftproof.audit.statistics.holm import adjusted

SEED = 4_000
LEVEL = 1e-3
OURS = ("keyed", "rejection", "block", "match")
EVERY = 5  # one run in so many is draftproof's
SETTINGS = {
    "temperature 1": SamplingParams(ignore_eos=True),
    "temperature 0.7, top_k 8": SamplingParams(temperature=0.7, top_k=8, ignore_eos=True),
    "repetition_penalty 1.3": SamplingParams(repetition_penalty=1.3, ignore_eos=True),
}
TWO_SIDED = ("pit", "pit by id", "pit by p/q")


@dataclass
class TableEngine:
    """Speculative sampling by the exact rejection rule over tables, many requests at once. Prompts are 0 to 7 in turn,
    the seed is the first request's.
    """

    sampler: ExactSampler
    name: str = "rejection over tables"
    keyed: bool = False

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        emission = self.sampler.run(len(requests), requests[0].params.max_tokens or 1, requests[0].seed)
        return [
            Generation(tuple(map(int, row)), pass_starts=tuple(map(int, np.flatnonzero(offsets == 0))))
            for row, offsets in zip(emission.token_ids, emission.pass_offsets, strict=True)
        ]


def over_tables(seed: int, num_tokens: int) -> tuple[str, Audit]:
    target, draft = instance_tables("random")
    engine = TableEngine(ExactSampler(target, draft))
    scorer = Scorer(TableModel(target), draft=TableModel(draft), seed=seed)
    prompts = [[token] for token in range(len(target))]
    return engine.name, audit_scored(
        engine, scorer, prompts, num_tokens=num_tokens, max_tokens=40, batch_size=160, seed=seed
    )


def of_ours(verifier: str, seed: int, num_tokens: int) -> tuple[str, Audit]:
    target = llama(2, 1)
    draft = without_last_layer(target)
    scorer = Scorer(TorchModel(target), draft=TorchModel(draft), seed=seed)
    return f"draftproof, {verifier}", audit_scored(
        ours(target, verifier, draft), scorer, PROMPTS, settings=SETTINGS, num_tokens=num_tokens, max_tokens=64,
        logit_error=1e-5, seed=seed,
    )  # fmt: skip


def run(index: int, num_tokens: int, num_tokens_of_ours: int) -> dict[str, Any]:
    """One audit: its engine is the index's, in turn."""
    torch.set_num_threads(1)
    seed, turn = SEED + index, index // EVERY
    name, audit = (
        of_ours(OURS[turn % len(OURS)], seed, num_tokens_of_ours)
        if index % EVERY == 0
        else over_tables(seed, num_tokens)
    )
    [table] = [table for table in audit.tables if table.title.startswith("Hypotheses")]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {
        "engine": name,
        "seed": seed,
        "verdict": audit.verdict.value,
        "tokens": audit.numbers["tokens"],
        "smallest_adjusted_p": min(row["adjusted p"] for row in rows),
        "peak_log10_e": audit.numbers["log10 of the e-value, peak"],
        "p_values": {row["statistic"]: row["p"] for row in rows if row["tokens"] == ALL},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=100)
    parser.add_argument("--num-tokens", type=int, default=50_000)
    parser.add_argument("--num-tokens-of-ours", type=int, default=4_000)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    began, runs = time.perf_counter(), []
    with ProcessPoolExecutor(given.processes) as pool:
        sizes = (given.num_tokens, given.num_tokens_of_ours)
        for done in as_completed([pool.submit(run, index, *sizes) for index in range(given.num_runs)]):
            runs.append(done.result())
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    runs.sort(key=lambda one: one["seed"])
    print(json.dumps(document(runs, round(time.perf_counter() - began, 1))))


def document(runs: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Verdicts, and the test of uniformity for each statistic."""
    names = sorted(runs[0]["p_values"])
    found = {}
    for name in names:
        values = [one["p_values"][name] for one in runs]
        side = "two-sided" if name in TWO_SIDED else "greater"
        found[name] = {
            "runs": len(values),
            "alternative": side,
            "ks_p": float(kstest(values, "uniform", alternative=side).pvalue),
            "share_below_0.1": sum(value < 0.1 for value in values) / len(values),
            "share_below_0.5": sum(value < 0.5 for value in values) / len(values),
        }
    holm = [float(p) for p in adjusted([found[name]["ks_p"] for name in names], [1 / len(names)] * len(names))]
    return {
        "num_runs": len(runs),
        "not_lossless": sum(one["verdict"] == "not lossless" for one in runs),
        "uniform": all(p > LEVEL for p in holm),
        "level": LEVEL,
        "smallest_holm_adjusted_ks_p": min(holm),
        "smallest_adjusted_p_of_a_run": min(one["smallest_adjusted_p"] for one in runs),
        "statistics": found,
        "runs": list(runs),
        "versions": versions(),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
