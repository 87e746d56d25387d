"""False alarms of the audit's whole family of statistics, over vectorised runs under the null hypothesis.

    python -m benchmarks.audit_nulls [NUM_RUNS] > docs/audits/nulls.json

Each run has 800 tokens of a table of 4 tokens, drawn from their own laws, and is one audit: Holm over all hypotheses
at nine tenths of 1e-4, the e-process, looked at 8 times, at one tenth. Expected: at most 10 alarms in 100,000; the
bar is 25, which a correct audit exceeds with probability below 1e-4. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from draftproof.audit.battery import Layout, hypotheses
from draftproof.audit.plan import ALPHA, FIXED_SHARE
from draftproof.audit.scores import score_rows
from draftproof.audit.statistics.eprocess import EProcess
from draftproof.audit.statistics.holm import smallest_adjusted

SEED = 20_261
NUM_TOKENS = 800
VOCAB_SIZE = 4
CHUNK = 500
LENGTH = 16


def main(num_runs: int) -> None:
    random = np.random.default_rng(SEED)
    target = random.dirichlet(np.ones(VOCAB_SIZE), size=VOCAB_SIZE)
    draft = random.dirichlet(np.ones(VOCAB_SIZE), size=VOCAB_SIZE)
    layout = Layout(knows_draft=True, by_offset=True)
    places = np.arange(NUM_TOKENS)
    by_test = by_evidence = alarms = 0
    smallest_p: list[float] = []
    shares = np.zeros(3)
    began = time.perf_counter()
    for start in range(0, num_runs, CHUNK):
        size = min(CHUNK, num_runs - start)
        contexts = np.empty((size, NUM_TOKENS), dtype=np.int64)
        token_ids = np.empty_like(contexts)
        last = random.integers(0, VOCAB_SIZE, size)
        for position in range(NUM_TOKENS):
            if position % LENGTH == 0:
                last = np.full(size, position // LENGTH % VOCAB_SIZE)
            contexts[:, position] = last
            uniforms = random.random(size)
            last = np.minimum((uniforms[:, None] >= target[last].cumsum(-1)).sum(-1), VOCAB_SIZE - 1)
            token_ids[:, position] = last
        scores = score_rows(
            target[contexts],
            token_ids,
            random,
            draft_probs=draft[contexts],
            previous_ids=contexts,
            ending_ids=(0,),
            request=places // LENGTH,
            position=places % LENGTH,
            pass_offset=places % 5,
        )
        found = hypotheses(scores, layout)
        smallest = smallest_adjusted(np.stack([h.p_value for h in found], -1), np.array([h.weight for h in found]))
        evidence = EProcess(knows_draft=True)
        for part in range(8):
            evidence.update(scores.where(places // (NUM_TOKENS // 8) == part))
        is_test = smallest <= ALPHA * FIXED_SHARE
        is_evidence = evidence.peak_log_e >= np.log(1 / (ALPHA * (1 - FIXED_SHARE)))
        by_test += int(is_test.sum())
        by_evidence += int(is_evidence.sum())
        alarms += int((is_test | is_evidence).sum())
        smallest_p += smallest[smallest <= 1e-3].tolist()
        shares += [(smallest <= level).sum() for level in (1e-3, 1e-2, 5e-2)]
    document = {
        "num_runs": num_runs,
        "num_tokens_each": NUM_TOKENS,
        "num_hypotheses": len(found),
        "alpha": ALPHA,
        "alarms": alarms,
        "alarms_by_tests": by_test,
        "alarms_by_evidence": by_evidence,
        "share_of_runs_with_adjusted_p_below": dict(
            zip(["1e-3", "1e-2", "5e-2"], (shares / num_runs).tolist(), strict=True)
        ),
        "smallest_adjusted_p": min(smallest_p, default=None),
        "seed": SEED,
        "numpy": np.__version__,
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
