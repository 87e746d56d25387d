"""Long generations: the same tokens with drafts as without, and how much they repeat.

    python -m benchmarks.long_runs [--num-seeds 20] [--num-tokens 1200] [--device cuda] [--jobs 8] > long_runs.json

One prompt, so many seeds and temperatures 0.7 and 1, end tokens ignored, `invariant` forwards. Under keyed the two
texts must be equal, so their repetition statistics are too; they are shown for what such texts look like. Exit code 1
if any text differs.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.jobs import in_order
from draftproof import LLM, SamplingParams
from draftproof.bench.trees import prompt_ids

PROMPT = "Write a long story about a lighthouse keeper who finds a letter in a bottle."


def distinct_trigrams(token_ids: Sequence[int]) -> float:
    """The share of 3-grams that are different ones."""
    grams = list(zip(token_ids, token_ids[1:], token_ids[2:], strict=False))
    return len(set(grams)) / len(grams)


def longest_repeated_run(token_ids: Sequence[int]) -> int:
    """The most tokens in a row that stand at two places, overlapping ones too."""
    size, best = len(token_ids), 0
    before = [0] * (size + 1)
    for first in range(size):
        row = [0] * (size + 1)
        for second in range(first + 1, size):
            if token_ids[first] == token_ids[second]:
                row[second + 1] = before[second] + 1
                best = max(best, row[second + 1])
        before = row
    return best


@dataclass(frozen=True)
class Part:
    """Some seeds at one temperature."""

    method: str
    dtype: str
    device: str
    temperature: float
    seeds: tuple[int, ...]
    size: int
    num_tokens: int


@functools.cache
def _engines(method: str, dtype: str, device: str, size: int, num_tokens: int) -> dict[str, LLM]:
    engine = {"dtype": dtype, "device": device, "max_num_seqs": size, "invariant": True}
    plain = LLM(max_model_len=num_tokens + 128, **engine)
    config = {"method": method, "num_speculative_tokens": 7, "draft_length": "fixed"}
    return {
        "plain": plain,
        "drafted": LLM.from_target(plain.target, plain.tokenizer, speculative_config=config),
    }


def _groups(num_seeds: int, size: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, num_seeds, size):
        yield tuple(range(first, min(first + size, num_seeds)))


def decoded(part: Part) -> tuple[dict[str, list[tuple[int, ...]]], int, str]:
    """The texts by way of decoding, in the order of their seeds; passes of the target with drafts; the dtype."""
    engines = _engines(part.method, part.dtype, part.device, part.size, part.num_tokens)
    params = SamplingParams(temperature=part.temperature, max_tokens=part.num_tokens, ignore_eos=True, detokenize=False)
    many = [replace(params, seed=seed) for seed in part.seeds]
    texts, passes = {}, 0
    for name, llm in engines.items():
        outputs = llm.generate([prompt_ids(llm, PROMPT)] * len(many), many)
        texts[name] = [tuple(output.outputs[0].token_ids) for output in outputs]
        if name == "drafted":
            records = [output.metrics.speculative_decoding for output in outputs]
            passes = sum(record["num_spec_steps"] + record["num_plain_steps"] for record in records)
    return texts, passes, str(engines["plain"].target.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dspark")
    parser.add_argument("--num-seeds", type=int, default=20)
    parser.add_argument("--num-tokens", type=int, default=1200)
    parser.add_argument("--temperatures", default="0.7,1")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="Processes, each with a share of the seeds.")
    args = parser.parse_args()
    began, rows, num_different = time.perf_counter(), [], 0
    temperatures = [float(value) for value in args.temperatures.split(",")]
    size = math.ceil(args.num_seeds * len(temperatures) / args.jobs) if args.jobs > 1 else args.num_seeds
    parts = [
        Part(args.method, args.dtype, args.device, temperature, seeds, size, args.num_tokens)
        for temperature in temperatures
        for seeds in _groups(args.num_seeds, size)
    ]
    done = list(zip(parts, in_order(decoded, parts, args.jobs), strict=True))
    for temperature in temperatures:
        here = [result for part, result in done if part.temperature == temperature]
        texts = {name: [text for result, *_ in here for text in result[name]] for name in ("plain", "drafted")}
        num_different += sum(a != b for a, b in zip(texts["plain"], texts["drafted"], strict=True))
        for name, own in texts.items():
            rows.append(
                {
                    "temperature": temperature,
                    "decoding": name,
                    "distinct_trigrams": sum(map(distinct_trigrams, own)) / len(own),
                    "longest_repeated_run": sorted(map(longest_repeated_run, own)),
                }
            )
        rows[-1]["tokens_per_pass"] = args.num_seeds * args.num_tokens / sum(passes for _, passes, _ in here)
        print(rows[-2:], file=sys.stderr, flush=True)
    document = {"method": args.method, "dtype": done[0][1][2], "device": args.device, "rows": rows,
                "num_seeds": args.num_seeds, "num_tokens": args.num_tokens, "num_different": num_different,
                "seconds": round(time.perf_counter() - began, 1), "torch": torch.__version__}  # fmt: skip
    print(json.dumps(document))
    sys.exit(1 if num_different else 0)


if __name__ == "__main__":
    main()
