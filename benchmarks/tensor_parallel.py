"""One model over the GPUs of a machine: the same text with speculation on and off, and what a step costs.

    torchrun --nproc-per-node 2 -m benchmarks.tensor_parallel FOLDER [--dtype bfloat16] [--num-tokens 64] [--texts FILE]

Runs on CPUs too (gloo), and in one process alone, whose texts a run in several can be compared with (`--texts`): in
float32 they are the same, in bfloat16 they may part at near ties, since processes add up in another order.
The first process prints one JSON document last; exit code 1 if a text differs with speculation.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.first.common import say
from draftproof import LLM, SamplingParams
from draftproof.targets.load import load_target
from draftproof.targets.parallel import LeadingTarget, follow, is_leader

CONFIG = {"method": "ngram", "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}


def compared(target: LeadingTarget, num_tokens: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Four requests, plain and speculative; and their texts."""
    prompts = [[7 + (seed + place % (3 + seed)) % 200 for place in range(64)] for seed in range(4)]
    params = [
        SamplingParams(
            temperature=0.7 * (seed % 2), seed=seed, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        for seed in range(4)
    ]
    texts, seconds = {}, {}
    for name, config in (("plain", None), ("speculative", CONFIG)):
        llm = LLM.from_target(target, None, speculative_config=config)  # type: ignore[arg-type]
        llm.generate(prompts, params)
        began = time.perf_counter()
        texts[name] = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        seconds[name] = time.perf_counter() - began
    num_different = sum(a != b for a, b in zip(texts["plain"], texts["speculative"], strict=True))
    rates = {name: 4 * num_tokens / taken for name, taken in seconds.items()}
    found = {"num_different": num_different, "tokens_per_second": rates, "holds": num_different == 0}
    return found, [list(text) for text in texts["plain"]]


def parted(texts: list[list[int]], others: list[list[int]]) -> list[int | None]:
    """Of each text the first token that differs; None where none does."""
    return [
        next((place for place, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), None)
        for text, other in zip(texts, others, strict=True)
    ]


def main() -> int:
    """The same program in every process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-tokens", type=int, default=64)
    parser.add_argument("--texts", type=Path, help="written if it isn't there; else what the texts are compared with")
    given = parser.parse_args()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    target, _ = load_target(
        given.folder, dtype=given.dtype, device=device, sharded=True, num_slots=4, max_model_len=512, invariant=True
    )
    if not is_leader():
        follow(target)
        return 0
    with LeadingTarget(target) as leading:
        found, texts = compared(leading, given.num_tokens)
    if given.texts is not None and given.texts.exists():
        found["parted_at"] = parted(texts, json.loads(given.texts.read_text()))
    elif given.texts is not None:
        given.texts.write_text(json.dumps(texts))
    say(f"{os.environ.get('WORLD_SIZE', '1')} processes, {target.device}")
    print(json.dumps(found))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
