"""Speculation on = off for all five learned methods on the embedded model, with trained weights.

    python -m benchmarks.replay_learned [--num-per-kind 4] [--max-tokens 48] [--jobs 8] > replay_learned.json

Methods x temperatures 0 and 1 x chains of 4, 7 and 15 x float32 and bfloat16, under keyed and `invariant`, on the
built-in prompts of six kinds: token ids must be equal, and drafts of every cell accepted. Block drafters were trained
for blocks of 8; they are loaded with blocks of 16 here, which guess worse and cost more. `dflash 2` has no weights of
its own: it is dflash's with convolutions and a selector of small random numbers around those that change nothing. Exit
code 1 if a text differs or a cell accepted nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.jobs import in_order
from draftproof import LLM, SamplingParams
from draftproof.bench.prompts import built_in
from draftproof.bench.trees import prompt_ids
from draftproof.drafters.learned import own
from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.targets.load import load_target

METHODS = ("dflash", "dflash 2", "dspark", "mtp", "eagle3")
CHAINS = (4, 7, 15)
TEMPERATURES = (0.0, 1.0)
DTYPES = ("float32", "bfloat16")
_RANK, _GROUP = 16, 64


@dataclass(frozen=True)
class Part:
    """Some of the prompts in one dtype; every method and chain is run on them."""

    folder: str
    dtype: str
    first: int
    size: int
    num_per_kind: int
    max_tokens: int


def write_drafters(folder: Path) -> None:
    """A folder for each method, whose block drafters draft 15 tokens."""
    for method in ("dflash", "dspark", "mtp", "eagle3"):
        shutil.copytree(own.FOLDER / method, folder / method)
        path = folder / method / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        if "block_size" in config:
            path.write_text(json.dumps(config | {"block_size": 16}), encoding="utf-8")
    write_second(folder / "dflash 2")


def write_second(folder: Path) -> None:
    """A dflash 2 in the packaging of z-lab, which drafts 15 tokens."""
    checkpoint, generator = Checkpoint(own.FOLDER / "dflash"), torch.Generator().manual_seed(1)
    config = checkpoint.config
    layers = config["transformer_layer_config"]
    hidden, vocab = layers["hidden_size"], layers["vocab_size"]

    def random(*shape: int, scale: float = 0.02) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator)

    tensors = {name: checkpoint.tensor(name).contiguous() for name in checkpoint.names if name not in ("d2t", "t2d")}
    for index in range(layers["num_hidden_layers"]):
        for name in ("attention_conv", "mlp_conv"):
            kernel = random(2, 2, hidden)
            kernel[:, 0] += 1.0
            tensors[f"layers.{index}.{name}.base_kernel"] = kernel
            size = 4 * (hidden // _GROUP)
            tensors[f"layers.{index}.{name}.kernel_projection.weight"] = random(size, hidden, scale=0.002)
    for name in ("predecessor_codebook", "successor_codebook"):
        tensors[f"candidate_selector.{name}"] = random(vocab, _RANK, scale=0.3)
    tensors["candidate_selector.hidden_projection.weight"] = random(_RANK, hidden)
    folder.mkdir()
    save_file(tensors, str(folder / "model.safetensors"))
    taps = [tap - 1 for tap in config["aux_hidden_state_layer_ids"]]
    changes = {
        "architectures": ["DFlashDraftModel"], "block_size": 16,
        "dflash_config": {"mask_token_id": config["mask_token_id"], "target_layer_ids": taps},
        "conv_kernel_size": 2, "conv_group_size": _GROUP, "selector_rank": _RANK, "selector_top_k": 16,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(layers | changes), encoding="utf-8")


@functools.cache
def _target(dtype: str, num_slots: int) -> tuple[Any, Any]:
    return load_target(dtype=dtype, invariant=True, num_slots=num_slots)


def replayed(part: Part) -> list[dict[str, Any]]:
    """A record for each method and chain; both temperatures are decoded together."""
    target, tokenizer = _target(part.dtype, part.size * len(TEMPERATURES))
    plain = LLM.from_target(target, tokenizer)
    prompts = built_in(part.num_per_kind)[part.first : part.first + part.size]
    ids = [prompt_ids(plain, prompt.text) for prompt in prompts for _ in TEMPERATURES]
    params = [
        SamplingParams(temperature=temperature, seed=part.first + place, max_tokens=part.max_tokens, detokenize=False)
        for place in range(len(prompts))
        for temperature in TEMPERATURES
    ]
    expected = [output.outputs[0].token_ids for output in plain.generate(ids, params)]
    records = []
    for method in METHODS:
        for chain in CHAINS:
            config = {
                "method": method.split()[0], "model": str(Path(part.folder) / method), "num_speculative_tokens": chain,
                "draft_length": "fixed",
            }  # fmt: skip
            llm = LLM.from_target(target, tokenizer, speculative_config=config)
            outputs = llm.generate(ids, params)
            for place, temperature in enumerate(TEMPERATURES):
                records.append(
                    {"dtype": part.dtype, "method": method, "chain": chain, "temperature": temperature}
                    | _compared(expected[place :: len(TEMPERATURES)], outputs[place :: len(TEMPERATURES)])
                )
    return records


def _compared(expected: list[Any], outputs: list[Any]) -> dict[str, int]:
    records = [output.metrics.speculative_decoding for output in outputs]
    found = [output.outputs[0].token_ids for output in outputs]
    return {
        "texts": len(found),
        "tokens": sum(map(len, found)),
        "different": sum(a != b for a, b in zip(expected, found, strict=True)),
        "passes": sum(record["num_spec_steps"] + record["num_plain_steps"] for record in records),
        "accepted": sum(record["num_accepted_draft_tokens"] for record in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-per-kind", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--prompts-at-once", type=int, default=4)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--jobs", type=int, default=1, help="Processes.")
    args = parser.parse_args()
    began, cells = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        write_drafters(Path(folder))

        def parts() -> Iterator[Part]:
            for dtype in args.dtypes.split(","):
                for first in range(0, 6 * args.num_per_kind, args.prompts_at_once):
                    yield Part(folder, dtype, first, args.prompts_at_once, args.num_per_kind, args.max_tokens)

        for number, records in enumerate(in_order(replayed, parts(), args.jobs)):
            for record in records:
                key = tuple(record.pop(name) for name in ("dtype", "method", "chain", "temperature"))
                before = cells.setdefault(key, dict.fromkeys(record, 0))
                cells[key] = {name: before[name] + value for name, value in record.items()}
            sums = {name: sum(counts[name] for counts in cells.values()) for name in ("texts", "tokens", "different")}
            print(number, round(time.perf_counter() - began), sums, file=sys.stderr, flush=True)
    rows = [
        {"dtype": dtype, "method": method, "chain": chain, "temperature": temperature} | counts
        for (dtype, method, chain, temperature), counts in sorted(cells.items())
    ]
    num_different = sum(row["different"] for row in rows)
    passed = not num_different and all(row["accepted"] for row in rows)
    print(json.dumps({
        "passed": passed, "num_different": num_different, "num_tokens": sum(row["tokens"] for row in rows),
        "rows": rows, "jobs": args.jobs, "seconds": round(time.perf_counter() - began, 1), "torch": torch.__version__,
    }))  # fmt: skip
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
