"""Makes src/draftproof/audit/patterns.json: what each mutant of scored mode looks like to the statistics.

    python -m benchmarks.audit_patterns [NUM_TOKENS]

A pattern is that of 200,000 tokens at full dose.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np

from draftproof.audit.battery import Layout, hypotheses
from draftproof.audit.diagnosis import pattern
from draftproof.audit.mutants import SAMPLERS
from draftproof.audit.mutants.run import LENGTH, dosed, scores_of
from draftproof.audit.mutants.sampler import instance_tables

SEED = 31
PLACE = Path(__file__).parents[1] / "src" / "draftproof" / "audit" / "patterns.json"


def main(num_tokens: int) -> None:
    layout = Layout(knows_draft=True, by_offset=True)
    found = []
    for mutant in SAMPLERS:
        tables = instance_tables(mutant.instance)
        scores = scores_of(dosed(mutant, 1.0, math.ceil(num_tokens / LENGTH), SEED), *tables, seed=SEED)
        strengths = {name: round(value, 5) for name, value in pattern(hypotheses(scores, layout)).items()}
        found.append({"name": mutant.name, "after": mutant.after, "pattern": strengths})
    document = {
        "made_by": "benchmarks/audit_patterns.py",
        "seed": SEED,
        "num_tokens": num_tokens,
        "numpy": np.__version__,
        "patterns": found,
    }
    PLACE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
