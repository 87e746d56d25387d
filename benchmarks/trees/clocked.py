"""What adapts itself along recorded texts, on a clock that advances by costs measured here.

    python -m benchmarks.trees.recorded texts --temperature 1 --texts T1.json --num-per-kind 10
    python -m benchmarks.trees.clocked --texts T1.json --method eagle3 --model FOLDER

First the real engine runs a few passes of each width, and the processor time of passes, of the drafter's first pass
and of its further ones is noted. Then the texts, kinds by turns, are one stream for each way of drafting: the drafter
and its policies run as they are, the target does not, and time is what these costs say. So ways can be held against
each other on a machine that others use, and a policy's gain or loss is told from the machine's noise. --scatter makes
the times of passes scatter, the same way each time, and --drift lets the machine be slower and faster for dozens of
passes. What it leaves out: what one way does to the caches of another, and
that a chain's draft may cost less than a tree's. `adaptive` measures that, on a quiet machine.
Bars: auto over the best fixed way in hindsight by kind, .97; over the best keyed chain, 1.15 at T = 1, 1.1 at T = 0.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch

import draftproof.drafters.tree.drafter as tree_drafter
import draftproof.engine.drafting as drafting
import draftproof.engine.step as step
from benchmarks.first.common import machine
from benchmarks.trees.common import add_model_flags
from benchmarks.trees.recorded import Walks, opened, path_along, verdict_of
from draftproof import LLM, SamplingParams
from draftproof.config import SpeculativeConfig
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.length import FixedLength
from draftproof.drafters.policies import policy_for
from draftproof.drafters.tree import BestFirst, Shares, TreeDrafter, shares_of, source_of
from draftproof.drafters.tree.drafter import TreeDrafter as Trees
from draftproof.noise import KeyedNoise
from draftproof.verify import get_verifier

WIDTHS = (2, 3, 4, 5, 6, 8, 11, 16, 32, 64)
"""Nodes. Products over weights in float16 take six rows at a time: from 6 to 7 tokens their time rises by a step."""
NUM_PASSES = 10
DEPTH = 8
KEPT = 0.97
"""Of a machine's drift, from one pass to the next."""


class Costs:
    """Seconds: of a pass by its width, of the drafter's first pass, of a further one by its new nodes."""

    def __init__(self, passes: dict[int, float], root: float, rounds: dict[int, float]) -> None:
        self.widths, self.seconds = np.array(sorted(passes)), np.array([passes[width] for width in sorted(passes)])
        self.root, self.rounds, self.passes = root, rounds, passes

    @classmethod
    def read(cls, path: FilePath) -> Costs:
        """The costs in a former run's output."""
        found = json.loads(path.read_text())["costs"]
        plain = found["plain_ms"] / 1e3
        by_width = {int(width): plain * steps for width, steps in found["pass"].items()}
        by_nodes = {int(nodes): plain * steps for nodes, steps in found["draft_round"].items()}
        return cls(by_width, plain * found["draft_root"], by_nodes)

    def of_pass(self, width: int) -> float:
        return float(np.interp(width, self.widths, self.seconds))

    def of_round(self, num_nodes: int) -> float:
        return float(np.interp(num_nodes, sorted(self.rounds), [self.rounds[n] for n in sorted(self.rounds)]))

    def as_dict(self) -> dict[str, Any]:
        plain = self.of_pass(1)
        return {
            "plain_ms": 1e3 * plain,
            "pass": {width: seconds / plain for width, seconds in self.passes.items()},
            "draft_root": self.root / plain,
            "draft_round": {nodes: seconds / plain for nodes, seconds in self.rounds.items()},
        }


class Noting(FixedLength):
    """A fixed length that notes what passes cost."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(num_tokens)
        self.seconds: dict[int, list[float]] = {}

    def observe_cost(self, width: int, seconds: float, load: Any = None) -> None:
        self.seconds.setdefault(width, []).append(seconds)


def calibrate(args: argparse.Namespace, text: dict[str, Any]) -> Costs:
    """Processor time of this thread, medians over a few passes of each width along one text."""
    for module in (step, drafting, tree_drafter):
        module.perf_counter = time.thread_time  # type: ignore[attr-defined]
    llm, base, method = opened(args, num_slots=1)
    passes: dict[int, float] = {}
    roots: list[float] = []
    rounds: dict[int, list[float]] = {}
    params = SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=1, max_tokens=100, ignore_eos=True)
    for num_nodes in (0, *WIDTHS):
        drafter = TreeDrafter(source_of(base), _widest(num_nodes), Shares())
        _note_rounds(drafter, roots, rounds)
        policy = Noting(num_nodes)
        config = {"topology": "tree", "draft_length": "fixed", "num_tree_nodes": max(num_nodes, 1)}
        engine = LLM.from_target(llm.target, llm.tokenizer, speculative_config={**method, **config}, drafter=drafter)
        engine.admission._policies = dict.fromkeys(("keyed", "greedy"), policy)
        run = engine.stream_generate(text["prompt_ids"], params)
        for _ in zip(range(3 * NUM_PASSES), run, strict=False):
            if len(policy.seconds.get(1 + num_nodes, ())) > NUM_PASSES:
                break
        run.close()  # type: ignore[attr-defined]
        passes[1 + num_nodes] = statistics.median(policy.seconds[1 + num_nodes][1:])
    medians = {nodes: statistics.median(found) for nodes, found in rounds.items() if len(found) > 3}
    return Costs(passes, statistics.median(roots), medians)


def _widest(num_nodes: int) -> Any:
    return BestFirst(DEPTH, 8, max_rounds=DEPTH - 1) if num_nodes > 4 else _chain(DEPTH)


def _chain(length: int) -> BestFirst:
    return BestFirst(length, 1, num_children=1)


def _note_rounds(drafter: Trees, roots: list[float], rounds: dict[int, list[float]]) -> None:
    """From the end of one of the source's answers to the end of the next: the builder's part is in it."""
    source, last = drafter.source, [0.0]
    root_laws, laws_after = source.root_laws, source.laws_after

    def first(requests: Any) -> Any:
        last[0] = time.thread_time()
        found = root_laws(requests)
        roots.append(time.thread_time() - last[0])
        last[0] = time.thread_time()
        return found

    def further(trees: Any, num_new: Any) -> Any:
        found = laws_after(trees, num_new)
        rounds.setdefault(sum(num_new), []).append(time.thread_time() - last[0])
        last[0] = time.thread_time()
        return found

    source.root_laws, source.laws_after = first, further  # type: ignore[method-assign]


class Stream:
    """One way of drafting, over all texts in turn."""

    def __init__(
        self,
        walks: Walks,
        costs: Costs,
        fields: dict[str, Any],
        builder: Any = None,
        scatter: float = 0.0,
        drift: float = 0.0,
    ) -> None:
        self.walks, self.costs, self.now = walks, costs, 0.0
        self.scatter, self.drift, self.random = scatter, drift, random.Random(1)
        self.level = 0.0
        self.config = SpeculativeConfig(**walks.method, verifier="keyed", **fields)
        self.policies = policy_for(self.config, get_verifier("keyed"))
        source = source_of(walks.drafter)
        builder = builder or BestFirst(DEPTH, 8, max_rounds=DEPTH - 1)
        shares = Shares(*_given(self.config)) if _is_fixed(self.config) else shares_of(self.config)
        self.drafter = TreeDrafter(source, builder, shares)
        root_laws, laws_after = source.root_laws, source.laws_after

        def first(requests: Any) -> Any:
            self.now += costs.root
            return root_laws(requests)

        def further(trees: Any, num_new: Any) -> Any:
            self.now += costs.of_round(sum(num_new))
            return laws_after(trees, num_new)

        source.root_laws, source.laws_after = first, further  # type: ignore[method-assign]

    def run(self, order: list[int]) -> tuple[dict[str, float], int]:
        """(seconds by kind, passes), the texts in that order."""
        tree_drafter.perf_counter = lambda: self.now  # type: ignore[attr-defined]
        seconds: dict[str, float] = {}
        num_passes = 0
        for slot in order:
            text, began = self.walks.texts[slot], self.now
            num_passes += self._text(slot, text)
            seconds[text["kind"]] = seconds.get(text["kind"], 0.0) + self.now - began
        return seconds, num_passes

    def _text(self, slot: int, text: dict[str, Any]) -> int:
        walks, policy, noise = self.walks, self.policies.for_request(), KeyedNoise(text["seed"])
        target, params = walks.llm.target, walks.params[slot]
        row = walks.llm.chain.resolve(params, walks.llm.tokenizer, target.vocab_size, target.eos_token_ids)
        # The first pass caches the prompt, in every way alike: it is not counted.
        context, output = [*text["prompt_ids"], text["output_ids"][0]], text["output_ids"][1:]
        history = row.first_history(text["prompt_ids"]).extended((text["output_ids"][0],))
        looks = policy if hasattr(policy, "num_worth") else None
        num_passes = 0
        while output:
            most = min(policy.num_tokens(None), params.max_tokens - (len(context) - len(text["prompt_ids"])) - 1)
            walks.at[slot] = len(context) - 1
            began = self.now
            request = DraftRequest(slot, context, most, noise, True, row, history, anticipating=looks)
            [draft] = self.drafter.propose([request])
            if most > 0:
                policy.observe_draft_cost(len(draft), self.now - began)
            path = path_along(draft, output)
            num = min(1 + len(path), len(output))
            self.level = KEPT * self.level + self.random.gauss(0.0, self.drift * math.sqrt(1.0 - KEPT**2))
            took = self.costs.of_pass(1 + len(draft)) * math.exp(self.level + self.random.gauss(0.0, self.scatter))
            self.now += took
            policy.observe(len(draft), min(len(path), num), None)
            policy.observe_cost(1 + len(draft), took)
            verdict = verdict_of(len(context), path, output[:num])
            context, history = [*context, *output[:num]], history.extended(tuple(output[:num]))
            self.drafter.observe(slot, context, verdict)
            output = output[num:]
            num_passes += 1
        self.drafter.release(slot)
        return num_passes


def _is_fixed(config: SpeculativeConfig) -> bool:
    return config.draft_length == "fixed" or config.topology == "chain"


def _given(config: SpeculativeConfig) -> tuple[float, float]:
    return (1.0 if config.noise_weight is None else config.noise_weight), config.sharpness or 1.0


def ways(greedy: bool) -> dict[str, tuple[dict[str, Any], Any]]:
    """Name -> (fields, builder)"""
    weights = (0.0,) if greedy else (1.0, 0.8)
    fixed: dict[str, tuple[dict[str, Any], Any]] = {
        f"chain {length}": ({"num_speculative_tokens": length, "draft_length": "fixed"}, _chain(length))
        for length in (1, 2, 3, 5, 7)
    }
    for nodes in (5, 8, 16, 32):
        for weight in weights:
            tree = {"topology": "tree", "num_tree_nodes": nodes, "draft_length": "fixed", "noise_weight": weight}
            fixed[f"tree {nodes}, zeta {weight:g}"] = (tree, None)
    return {
        **fixed,
        "chain, auto": ({"num_speculative_tokens": 7}, _chain(7)),
        "auto": ({"topology": "auto", "num_tree_nodes": 32}, None),
    }


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Every way over the same stream."""
    walks = Walks(args)
    order = _by_turns([text["kind"] for text in walks.texts])
    costs = calibrate(args, walks.texts[0]) if args.costs is None else Costs.read(args.costs)
    print(costs.as_dict(), file=sys.stderr, flush=True)
    kinds = list(dict.fromkeys(text["kind"] for text in walks.texts))
    tokens = {kind: sum(len(t["output_ids"]) - 1 for t in walks.texts if t["kind"] == kind) for kind in kinds}
    seconds = {"plain": {kind: count * costs.of_pass(1) for kind, count in tokens.items()}}
    per_pass: dict[str, float] = {}
    losses: Any = None
    for name, (fields, builder) in ways(args.temperature == 0).items():
        if args.ways and name not in args.ways and name != "auto":
            continue
        stream = Stream(walks, costs, fields, builder, args.scatter, args.drift)
        seconds[name], passes = stream.run(order)
        per_pass[name] = sum(tokens.values()) / passes
        losses = stream.drafter.shares.means() if hasattr(stream.drafter.shares, "means") else losses
        speed = sum(seconds["plain"].values()) / sum(seconds[name].values())
        print(f"{name}: {per_pass[name]:.2f} tokens a pass, {speed:.3f} of plain", file=sys.stderr, flush=True)
    total = {name: sum(found.values()) for name, found in seconds.items()}
    fixed = [name for name in seconds if "auto" not in name]
    chains = [name for name in seconds if name.startswith("chain")]
    best = {kind: min(fixed, key=lambda name, kind=kind: seconds[name][kind]) for kind in kinds}  # type: ignore[misc]
    return {
        "costs": costs.as_dict(),
        "tokens_per_pass": per_pass,
        "speed_over_plain": {name: total["plain"] / found for name, found in total.items()},
        "best_fixed": best,
        "auto_over_hindsight": sum(seconds[best[kind]][kind] for kind in kinds) / total["auto"],
        "auto_over_best_chain": min(total[name] for name in chains) / total["auto"],
        "losses": losses,
    }


def _by_turns(kinds: list[str]) -> list[int]:
    """Indices, one of each kind after the other."""
    seen: dict[str, int] = {}
    turns = []
    for index, kind in enumerate(kinds):
        turns.append((seen.setdefault(kind, 0), index))
        seen[kind] += 1
    return [index for _, index in sorted(turns)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--texts", type=FilePath, required=True)
    parser.add_argument("--ways", nargs="+")
    parser.add_argument(
        "--costs", type=FilePath, help="a former run's output: its costs, to hold two versions together"
    )
    parser.add_argument(
        "--scatter", type=float, default=0.0, help="standard deviation of the logarithm of a pass's time"
    )
    parser.add_argument(
        "--drift", type=float, default=0.0, help="the same of the machine's own, from pass to pass alike"
    )
    args = parser.parse_args()
    known = [name for name in ways(args.temperature == 0) if name != "auto"]
    if args.ways and (not set(args.ways) <= {*known, "auto"} or not any("chain" in name for name in args.ways)):
        parser.error(f"--ways: got {args.ways}, allowed are some of {known}, a chain among them; auto runs always")
    torch.set_num_threads(args.threads)
    settings = {name: str(value) for name, value in vars(args).items()}
    print(json.dumps({**compare(args), "machine": machine(), "settings": settings}))


if __name__ == "__main__":
    main()
