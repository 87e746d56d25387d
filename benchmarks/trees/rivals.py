"""Every verifier at equal numbers of nodes on a real model: tokens per pass of the same prompts, settings and drafters.

    python -m benchmarks.trees.rivals run --folder FOLDER --methods eagle3 dspark     (once for each core, together)
    python -m benchmarks.trees.rivals table --folder FOLDER

Cells are claimed one by one by whoever is free, the most wanted first; each is a file of [kind, tokens, passes] of
every prompt. All prompts of a cell are decoded together, and a prompt has the same seed in every cell. Passes without a
draft count, and so does the bonus token. Intervals are those of `bench trees`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.trees.common import add_model_flags, open_target
from draftproof import LLM, SamplingParams
from draftproof.bench.prompts import built_in
from draftproof.bench.ratio import ratio
from draftproof.bench.trees import read_prompts
from draftproof.config import DEFAULT_TREE_DEPTH, TREE_VERIFIERS, SpeculativeConfig
from draftproof.drafters import make_drafter
from draftproof.drafters.tree import tree_drafter_of
from draftproof.targets.load import load_target

SETTINGS = ((1.0, 1.0), (0.7, 1.0), (1.0, 0.95))
ZETAS = (0.8, 0.0, 1.0)
CHAIN_LENGTH = 7


def cells(method: str, nodes: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, fields) of a drafter's cells."""
    chain = {"topology": "chain", "num_speculative_tokens": CHAIN_LENGTH, "draft_length": "fixed"}
    for num in nodes:
        tree = {"topology": "tree", "num_tree_nodes": num, "draft_length": "fixed"}
        for verifier in TREE_VERIFIERS:
            depth = min(DEFAULT_TREE_DEPTH, num)
            yield f"{verifier}, {num}", {**tree, "verifier": verifier, "max_tree_depth": depth}
        for zeta in ZETAS:
            yield f"keyed tree, zeta {zeta:g}, {num}", {**tree, "verifier": "keyed", "noise_weight": zeta}
    for verifier in ("block", "rejection"):
        yield f"chain, {verifier}, {CHAIN_LENGTH}", {**chain, "verifier": verifier}
    for zeta in ZETAS:
        yield f"chain, keyed, zeta {zeta:g}, {CHAIN_LENGTH}", {**chain, "verifier": "keyed", "noise_weight": zeta}


def wanted(args: argparse.Namespace) -> Iterator[tuple[str, float, float, str, dict[str, Any]]]:
    """Every cell: (method, temperature, top_p, name, fields)."""
    for num in args.nodes:
        for temperature, top_p in args.settings:
            for method in args.methods:
                for name, fields in cells(method, [num]):
                    if fields["topology"] == "tree" or num == args.nodes[0]:
                        yield method, temperature, top_p, name, fields


class Bench:
    """One process: a target, the prompts, and the drafter that was wanted last: a target serves one's taps."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        prompts = built_in(args.num_per_kind) if args.prompts is None else read_prompts(args.prompts, args.num_per_kind)
        slots = min(args.batch, len(prompts))
        if args.invariant:
            target, self.tokenizer = open_target(args, num_slots=slots)
        else:
            target, self.tokenizer = load_target(dtype=args.dtype, invariant=False, num_slots=slots)
        self.target: Any = target
        self.plain = LLM.from_target(target, self.tokenizer)
        self.kinds = [prompt.kind for prompt in prompts]
        self.ids = [self.plain.encode_chat([{"role": "user", "content": prompt.text}]) for prompt in prompts]
        self.method, self.drafter = "", None

    def run(self, method: str, temperature: float, top_p: float, fields: dict[str, Any]) -> list[list[Any]]:
        """[kind, tokens, passes] of every prompt."""
        named = {"method": method, "model": dict(zip(self.args.methods, self.args.models, strict=False)).get(method)}
        if method != self.method:
            self.drafter = make_drafter(SpeculativeConfig(**named), self.target, self.tokenizer, self.plain.chain)
            self.method = method
        config, drafter = SpeculativeConfig(**named, **fields), self.drafter
        drafter = drafter if config.topology == "chain" else tree_drafter_of(drafter, config)
        llm = LLM.from_target(self.target, self.tokenizer, speculative_config=config, drafter=drafter)
        params = [
            SamplingParams(
                temperature=temperature, top_p=top_p, seed=self.args.seed + index, max_tokens=self.args.max_tokens
            )
            for index in range(len(self.ids))
        ]
        outputs = llm.generate(self.ids, params)
        return [
            [kind, len(output.outputs[0].token_ids), output.metrics.num_passes]
            for kind, output in zip(self.kinds, outputs, strict=True)
        ]


def run(args: argparse.Namespace) -> None:
    """Takes cells until none is left."""
    bench = Bench(args)
    for method, temperature, top_p, name, fields in wanted(args):
        path = args.folder / f"{method}, T={temperature:g}, p={top_p:g}, {name}.json"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            continue
        began = time.perf_counter()
        try:
            items = bench.run(method, temperature, top_p, fields)
        except Exception as error:  # noqa: BLE001 - one cell's failure is reported, and the others go on
            print(path.name, "FAILED", repr(error), file=sys.stderr, flush=True)
            continue
        record = {"method": method, "temperature": temperature, "top_p": top_p, "rule": name, "items": items}
        path.write_text(json.dumps(record))
        print(path.name, _ratio(items), f"{time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def _ratio(items: Sequence[Sequence[Any]]) -> tuple[float, float]:
    # A prompt's first pass caches it; its token is no draft's doing.
    return ratio([(num_tokens - 1, num_passes - 1) for _, num_tokens, num_passes in items if num_passes > 1])


def table(args: argparse.Namespace) -> None:
    """The cells that are there, as Markdown: a row a rule, a column a number of nodes."""
    found: dict[tuple[str, float, float], dict[str, dict[str, tuple[float, float]]]] = {}
    for path in sorted(args.folder.glob("*.json")):
        if not path.stat().st_size:
            continue
        record = json.loads(path.read_text())
        rule, num = record["rule"].rsplit(", ", 1)
        own = found.setdefault((record["method"], record["temperature"], record["top_p"]), {})
        own.setdefault(rule, {})[num] = _ratio(record["items"])
    for (method, temperature, top_p), rules in found.items():
        columns = sorted({num for row in rules.values() for num in row}, key=int)
        print(f"\n{method}, T={temperature:g}, top-p {top_p:g}\n\n| rule | {' | '.join(columns)} |")
        print("|" + "---|" * (len(columns) + 1))
        for rule, row in rules.items():
            shown = [f"{row[num][0]:.2f} ± {row[num][1]:.2f}" if num in row else "" for num in columns]
            print(f"| {rule} | {' | '.join(shown)} |")


def _setting(text: str) -> tuple[float, float]:
    temperature, top_p = text.split(",")
    return float(temperature), float(top_p)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    add_model_flags(parser)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["eagle3", "dspark"])
    parser.add_argument("--models", nargs="*", default=[], help="their folders, in the same order")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--num-per-kind", type=int)
    parser.add_argument("--nodes", type=int, nargs="+", default=[32, 16, 8, 64])
    parser.add_argument("--settings", type=_setting, nargs="+", default=SETTINGS, help="temperature,top_p")
    parser.add_argument("--batch", type=int, default=15)
    parser.add_argument("--invariant", action="store_true", help="keyed cells then emit one and the same text")
    args = parser.parse_args()
    if args.what == "table":
        table(args)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    run(args)


if __name__ == "__main__":
    main()
