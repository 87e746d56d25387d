"""The bars of the exact core: writes one JSON file with versions and settings beside every figure.

    python -m benchmarks.first_issue [--parts replay greedy plain overhead pays memory] [--out FILE]

The last line on stdout is the JSON document. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from benchmarks.first import memory, replay, speed
from draftproof.targets.dtype import resolve_dtype


def main() -> int:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["replay", "greedy", "plain", "overhead", "pays", "memory"])
    parser.add_argument("--dtype", default="auto", help="of the speed parts; auto is bfloat16 where the CPU has it")
    parser.add_argument("--replay-dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--num-prompts", type=int, default=8, help="a cell of the replay matrix")
    parser.add_argument("--max-tokens", type=int, default=32, help="a prompt of the replay matrix")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/first_issue.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype = str(resolve_dtype(given.dtype, torch.device("cpu"))).removeprefix("torch.")
    parts: dict[str, Any] = {
        "replay": lambda: replay.run(
            dtypes=tuple(given.replay_dtypes), num_prompts=given.num_prompts, max_tokens=given.max_tokens
        ),
        "greedy": lambda: replay.greedy_gap(dtype=dtype),
        "plain": lambda: speed.plain_speed(dtype=dtype),
        "overhead": lambda: speed.overhead(dtype=dtype),
        "pays": lambda: {
            f"invariant={invariant}": speed.pays(dtype=dtype, invariant=invariant) for invariant in (False, True)
        },
        "memory": lambda: memory.run(dtype=dtype),
    }
    results = {name: parts[name]() for name in given.parts}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))
    flat = [entry for result in results.values() for entry in ([result] if "holds" in result else result.values())]
    return 0 if all(entry["holds"] for entry in flat) else 1


if __name__ == "__main__":
    sys.exit(main())
