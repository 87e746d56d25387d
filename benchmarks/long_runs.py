"""Long generations: the same tokens with drafts as without, and how much they repeat.

    python -m benchmarks.long_runs [--num-seeds 20] [--num-tokens 1200] [--device cuda] > long_runs.json

One prompt, so many seeds and temperatures 0.7 and 1, end tokens ignored, `invariant` forwards. Under keyed the two
texts must be equal, so their repetition statistics are too; they are shown for what such texts look like. Exit code 1
if any text differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dspark")
    parser.add_argument("--num-seeds", type=int, default=20)
    parser.add_argument("--num-tokens", type=int, default=1200)
    parser.add_argument("--temperatures", default="0.7,1")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    began, rows, num_different = time.perf_counter(), [], 0
    engine = {"dtype": args.dtype, "device": args.device, "max_num_seqs": args.num_seeds, "invariant": True}
    plain = LLM(max_model_len=args.num_tokens + 128, **engine)
    config = {"method": args.method, "num_speculative_tokens": 7, "draft_length": "fixed"}
    drafting = LLM.from_target(plain.target, plain.tokenizer, speculative_config=config)
    ids = prompt_ids(plain, PROMPT)
    for temperature in map(float, args.temperatures.split(",")):
        params = SamplingParams(temperature=temperature, max_tokens=args.num_tokens, ignore_eos=True, detokenize=False)
        many = [replace(params, seed=seed) for seed in range(args.num_seeds)]
        texts, passes = {}, 0
        for name, llm in (("plain", plain), ("drafted", drafting)):
            outputs = llm.generate([ids] * args.num_seeds, many)
            texts[name] = [tuple(output.outputs[0].token_ids) for output in outputs]
            if name == "drafted":
                records = [output.metrics.speculative_decoding for output in outputs]
                passes = sum(record["num_spec_steps"] + record["num_plain_steps"] for record in records)
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
        rows[-1]["tokens_per_pass"] = args.num_seeds * args.num_tokens / passes
        print(rows[-2:], file=sys.stderr, flush=True)
    document = {"method": args.method, "dtype": str(plain.target.dtype), "device": args.device, "rows": rows,
                "num_seeds": args.num_seeds, "num_tokens": args.num_tokens, "num_different": num_different,
                "seconds": round(time.perf_counter() - began, 1), "torch": torch.__version__}  # fmt: skip
    print(json.dumps(document))
    sys.exit(1 if num_different else 0)


if __name__ == "__main__":
    main()
