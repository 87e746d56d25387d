"""The bars of the exact core: writes one JSON file with versions and settings beside every figure.

    python -m benchmarks.first_issue [--parts replay greedy plain overhead pays memory] [--out FILE]

The last line on stdout is the JSON document. Exit code 1 if a bar is missed. On a machine with many cores the replay
matrix can run in n processes, `--parts replay --shard i/n --out FILE_i` for i from 0 to n - 1, and
`--merge FILE_0 …` makes one document of their files.
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


def main() -> int:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["replay", "greedy", "plain", "overhead", "pays", "memory"])
    parser.add_argument("--dtype", default="auto", help="of the speed parts")
    parser.add_argument("--replay-dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--num-prompts", type=int, default=8, help="a cell of the replay matrix")
    parser.add_argument("--max-tokens", type=int, default=32, help="a prompt of the replay matrix")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/first_issue.json"))
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="of the replay matrix")
    parser.add_argument("--pays", nargs="+", default=list(speed.PAYS), choices=list(speed.PAYS), help="of that part")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="results of shards; nothing is run")
    given = parser.parse_args()
    if given.merge:
        shards = [json.loads(path.read_text())["replay"] for path in given.merge]
        return _finish({"replay": replay.merged(shards)}, given.out)
    torch.set_num_threads(given.threads)
    dtype = given.dtype
    parts: dict[str, Any] = {
        "replay": lambda: replay.run(
            dtypes=tuple(given.replay_dtypes),
            num_prompts=given.num_prompts,
            max_tokens=given.max_tokens,
            shard=given.shard,
        ),
        "greedy": lambda: replay.greedy_gap(dtype=dtype),
        "plain": lambda: speed.plain_speed(dtype=dtype),
        "overhead": lambda: speed.overhead(dtype=dtype),
        "pays": lambda: {
            f"invariant={invariant}": speed.pays(dtype=dtype, invariant=invariant, names=given.pays)
            for invariant in (False, True)
        },
        "memory": lambda: memory.run(dtype=dtype),
    }
    return _finish({name: parts[name]() for name in given.parts}, given.out)


def _finish(results: dict[str, Any], out: Path) -> int:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))
    flat = [entry for result in results.values() for entry in ([result] if "holds" in result else result.values())]
    return 0 if all(entry["holds"] for entry in flat) else 1


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard: I/N with 0 <= I < N")
    return int(index), int(count)


if __name__ == "__main__":
    sys.exit(main())
