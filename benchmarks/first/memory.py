"""No growth over 2,000 generated tokens beyond the cache."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from benchmarks.first.common import chat_ids, engine, machine, prompts, target_of
from draftproof import SamplingParams

SLACK_MB = 16


def resident_mb() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def run(*, dtype: str, num_tokens: int = 2000) -> dict[str, Any]:
    """Two runs of the same length: the first one grows the cache to its size, the second must add nothing."""
    target, tokenizer = target_of(dtype, invariant=False)
    llm = engine(target, tokenizer, "suffix")
    prompt_ids = chat_ids(llm, prompts("ordinary")[0])
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=num_tokens, ignore_eos=True)
    readings = []
    for _ in range(2):
        num = 0
        for chunk in llm.stream_generate(prompt_ids, params):
            num += chunk.token_id >= 0
            if num % 250 == 0 and chunk.token_id >= 0:
                readings.append(resident_mb())
    first_end, growth = readings[len(readings) // 2 - 1], readings[-1] - readings[len(readings) // 2 - 1]
    return {
        "machine": machine(dtype=dtype, num_tokens=num_tokens),
        "resident_mb": readings,
        "after_first_run_mb": first_end,
        "growth_mb": growth,
        "slack_mb": SLACK_MB,
        "holds": growth <= SLACK_MB,
    }
