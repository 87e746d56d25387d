"""What adapts itself, against plain decoding and against the best fixed setting in hindsight.

    python -m benchmarks.trees.adaptive random_words --method suffix
    python -m benchmarks.trees.adaptive stream --method eagle3 --model FOLDER --prompts FILE

random_words: prompts of random tokens, and a target whose words no drafter can guess; auto over plain, >= .97. A high
temperature alone does not make them so: under `keyed` the noise is known, and decides the more the flatter the law is.
So the target is biased against every token of the drafter's vocabulary (BIAS), which the drafter, for whom all are
alike, does not notice: it proposes, with confidence, and never rightly. Without a vocabulary of its own: temperature 2.
stream: a mixed stream of prompts through one engine; auto's tokens per second over those of the best fixed setting,
chosen in hindsight for each kind of prompt, >= .97; and over the best keyed chain, >= 1.15 at T = 1 and 1.1 at T = 0.
--beside names other drafters, whose chains and `auto` run along: "eagle3: chain 2" then counts among the chains.
Every way decodes a prompt before the next prompt's turn, so that the machine's load falls on all of them alike. Under
keyed all of them emit the same text; with one that differs the exit status is 1 (`invariant` is on).
--part runs some of a stream's prompts, so that a machine of many cores runs it in parts; `join` adds them up.
--clock cpu counts the thread's own processor time, for a machine that others use; run it with one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import draftproof.drafters.tree.drafter as tree_drafter
import draftproof.engine.drafting as drafting
import draftproof.engine.step as step
from benchmarks.first.common import machine, pruned_drafter
from benchmarks.trees.common import add_model_flags, open_target
from draftproof import LLM, SamplingParams
from draftproof.bench.prompts import built_in
from draftproof.bench.trees import Prompt, read_prompts
from draftproof.config import SpeculativeConfig
from draftproof.core import Key, Purpose
from draftproof.drafters import make_drafter
from draftproof.drafters.tree import tree_drafter_of
from draftproof.noise import KeyedNoise

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
BIAS = -60.0
CHAINS = {
    "chain 1": {"num_speculative_tokens": 1, "draft_length": "fixed"},
    "chain 2": {"num_speculative_tokens": 2, "draft_length": "fixed"},
    "chain 3": {"num_speculative_tokens": 3, "draft_length": "fixed"},
    "chain 5": {"num_speculative_tokens": 5, "draft_length": "fixed"},
    "chain 7": {"num_speculative_tokens": 7, "draft_length": "fixed"},
    "chain, auto": {"num_speculative_tokens": 7},
}
TREES = {
    f"tree {nodes}, zeta {weight:g}": {
        "topology": "tree",
        "num_tree_nodes": nodes,
        "draft_length": "fixed",
        "noise_weight": weight,
        "sharpness": 1.0,
    }
    for nodes in (5, 8, 16, 32)
    for weight in (1.0, 0.8)
}
AUTO = {"auto": {"topology": "auto", "num_tree_nodes": 32}}
LOOKUP = {"auto, lookup 2": {"topology": "auto", "num_tree_nodes": 32, "lookup_first": 2}}


class Ways:
    """Engines over one target and one drafter's weights, "plain" among them."""

    def __init__(self, args: argparse.Namespace, ways: dict[str, dict[str, Any]], opened: tuple[Any, Any]) -> None:
        target, tokenizer = opened
        self.llms = {"plain": LLM.from_target(target, tokenizer)}
        plain = self.llms["plain"]
        method = {"method": args.method, "model": args.model}
        if args.method == "draft_model" and args.model is None:
            drafter, method = pruned_drafter(plain), {"method": "draft_model", "model": "layers"}
        else:
            drafter = make_drafter(SpeculativeConfig(**method), target, tokenizer, plain.chain)
        vocab = drafter.ends.vocab if hasattr(drafter, "ends") else None
        self.drafters_ids: list[int] = [] if vocab is None else vocab.token_ids.tolist()
        for name, fields in ways.items():
            config = SpeculativeConfig(**method, **fields)
            used = drafter if config.topology == "chain" else tree_drafter_of(drafter, config)
            self.llms[name] = LLM.from_target(target, tokenizer, speculative_config=config, drafter=used)

    def run(self, name: str, token_ids: list[int], params: SamplingParams, clock: Callable[[], float]) -> Any:
        """(seconds, passes, token ids)."""
        began = clock()
        [output] = self.llms[name].generate([token_ids], params)
        return clock() - began, output.metrics.num_passes, output.outputs[0].token_ids


def random_words(args: argparse.Namespace) -> dict[str, Any]:
    """Auto over plain where nothing can be guessed."""
    clock = CLOCKS[args.clock]
    ways = Ways(args, AUTO, open_target(args))
    size = ways.llms["plain"].target.vocab_size
    seconds, tokens, passes = {"plain": 0.0, "auto": 0.0}, 0, 0
    differing: list[str] = []
    bias = dict.fromkeys(ways.drafters_ids, BIAS) or None
    for index in range(args.num_prompts + 1):
        words = KeyedNoise(args.seed + index).field(Key(Purpose.DRAFT, 0), 32).astype("int64") % size
        params = SamplingParams(
            temperature=1.0 if bias else 2.0,
            logit_bias=bias,
            seed=args.seed + index,
            max_tokens=args.max_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        runs = {name: ways.run(name, words.tolist(), params, clock) for name in _turned(seconds, index)}
        differing += _differing(index, runs)
        # The first prompt warms up: what adapts goes on with what it has learned, as an engine does.
        if index:
            for name, run in runs.items():
                seconds[name] += run[0]
            tokens, passes = tokens + len(runs["plain"][2]), passes + runs["auto"][1]
    ratio = seconds["plain"] / seconds["auto"]
    return {"ratio": ratio, "bar": 0.97, "tokens": tokens, "auto_passes": passes, "differing": differing}


def stream(args: argparse.Namespace) -> dict[str, Any]:
    """A mixed stream: kinds by turns."""
    clock, prompts = CLOCKS[args.clock], _mixed(args)
    known = {**CHAINS, **TREES, **LOOKUP}
    unknown = set(args.ways or ()) - known.keys()
    if unknown:
        raise SystemExit(f"--ways {', '.join(sorted(unknown))}: must be some of {', '.join(known)}")
    wanted = {name: fields for name, fields in known.items() if not args.ways or name in args.ways}
    own = Ways(args, {**wanted, **AUTO}, open_target(args))
    # Name -> the engines that have it, and its name there.
    ways = {name: (own, name) for name in own.llms}
    for method in args.beside:
        others = argparse.Namespace(**{**vars(args), "method": method, "model": None})
        chains = {name: fields for name, fields in wanted.items() if name in CHAINS}
        beside = Ways(others, {**chains, **AUTO}, open_target(args))
        ways |= {f"{method}: {name}": (beside, name) for name in (*chains, *AUTO)}
    names, kinds = list(ways), list(dict.fromkeys(prompt.kind for _, prompt in prompts))
    seconds = {name: dict.fromkeys(kinds, 0.0) for name in names}
    passes, tokens = dict.fromkeys(names, 0), dict.fromkeys(kinds, 0)
    differing: list[str] = []
    for index, prompt in prompts:
        ids = own.llms["plain"].encode_chat([{"role": "user", "content": prompt.text}])
        params = SamplingParams(
            temperature=args.temperature, top_p=args.top_p, seed=args.seed + index, max_tokens=args.max_tokens
        )
        runs = {name: ways[name][0].run(ways[name][1], ids, params, clock) for name in _turned(names, index)}
        differing += _differing(index, runs)
        tokens[prompt.kind] += len(runs["plain"][2])
        for name, run in runs.items():
            seconds[name][prompt.kind] += run[0]
            passes[name] += run[1]
        print(index, prompt.kind, {name: f"{run[0]:.2f}" for name, run in runs.items()}, file=sys.stderr, flush=True)
        print(
            json.dumps({"seconds": seconds, "passes": passes, "tokens": tokens, "differing": differing}),
            file=sys.stderr,
            flush=True,
        )
    return _summary(seconds, passes, tokens) | {
        "losses": _losses(own.llms["auto"]),
        "differing": differing,
    }


def join(args: argparse.Namespace) -> dict[str, Any]:
    """What the parts of a stream, processes of their own, come to together: from each one's last count."""
    parts = []
    for path in args.parts:
        counts = [line for line in path.read_text().splitlines() if line.startswith('{"seconds"')]
        if not counts:
            raise SystemExit(f"{path} has no count; give what a stream wrote on its standard error")
        parts.append(json.loads(counts[-1]))
    names = list(parts[0]["seconds"])
    kinds = list(dict.fromkeys(kind for part in parts for kind in part["tokens"]))
    seconds = {
        name: {kind: sum(part["seconds"][name].get(kind, 0.0) for part in parts) for kind in kinds} for name in names
    }
    passes = {name: sum(part["passes"][name] for part in parts) for name in names}
    tokens = {kind: sum(part["tokens"].get(kind, 0) for part in parts) for kind in kinds}
    return _summary(seconds, passes, tokens) | {"differing": [name for part in parts for name in part["differing"]]}


def _summary(seconds: dict[str, dict[str, float]], passes: dict[str, int], tokens: dict[str, int]) -> dict[str, Any]:
    """seconds: of each way by kind. passes: of each way. tokens: by kind."""
    names, kinds, num_tokens = list(seconds), list(tokens), sum(tokens.values())
    total = {name: sum(found.values()) for name, found in seconds.items()}
    fixed = [name for name in names if not name.split(": ")[-1].startswith("auto")]
    chains = [name for name in names if name.split(": ")[-1].startswith("chain")]
    autos = [name for name in names if name.split(": ")[-1].startswith("auto")]
    best = {kind: min(fixed, key=lambda name, kind=kind: seconds[name][kind]) for kind in kinds}  # type: ignore[misc]
    # Another drafter's fixed ways are none that this engine could have been set to.
    own = [name for name in fixed if ": " not in name]
    hindsight = sum(min(seconds[name][kind] for name in own) for kind in kinds)
    return {
        "tokens_per_pass": {name: num_tokens / passes[name] for name in names},
        "speed_over_plain": {name: total["plain"] / total[name] for name in names},
        "best_fixed": best,
        "auto_over_plain": {kind: seconds["plain"][kind] / seconds["auto"][kind] for kind in kinds},
        "auto_over_hindsight": hindsight / total["auto"],
        "over_best_chain": {name: min((total[chain] for chain in chains), default=0.0) / total[name] for name in autos},
        "tokens_per_second": {name: num_tokens / total[name] for name in names},
    }


def _losses(llm: LLM) -> Any:
    shares = getattr(llm.drafter, "shares", None)
    return shares.means() if hasattr(shares, "means") else None


def _mixed(args: argparse.Namespace) -> list[tuple[int, Prompt]]:
    """With their places in the whole stream; of a part those whose round, one prompt of each kind, is its turn."""
    prompts = built_in() if args.prompts is None else read_prompts(args.prompts)
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    per_kind = -(-args.num_prompts // len(by_kind))
    turns = [kept[i % len(kept)] for i in range(per_kind) for kept in by_kind.values()]
    part, num_parts = args.part
    numbered = list(enumerate(turns[: args.num_prompts]))
    return [found for found in numbered if found[0] // len(by_kind) % num_parts == part]


def _turned(names: Sequence[str] | dict[str, float], index: int) -> list[str]:
    """Another one begins each time."""
    listed = list(names)
    first = index % len(listed)
    return listed[first:] + listed[:first]


def _differing(index: int, runs: dict[str, Any]) -> list[str]:
    """The ways whose text isn't plain decoding's; where they part is written to standard error."""
    expected, found = runs["plain"][2], []
    for name, (_, _, token_ids) in runs.items():
        if token_ids != expected:
            pairs = zip(token_ids, expected, strict=False)
            place = next((i for i, (own, other) in enumerate(pairs) if own != other), len(expected))
            print(
                f"prompt {index}: {name} is another text than plain from token {place} on", file=sys.stderr, flush=True
            )
            found.append(f"{index}: {name}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("random_words", "stream", "join"))
    add_model_flags(parser)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--ways", nargs="+", help="of the fixed ways, these alone; chain 5 for example")
    parser.add_argument("--beside", nargs="*", default=[], help="other drafters with weights of the package")
    parser.add_argument("--num-prompts", type=int, default=60)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="of N parts of a stream")
    parser.add_argument("--parts", type=Path, nargs="+", default=[], help="join: what the parts wrote on stderr")
    parser.add_argument(
        "--copies", action="store_true", help="trees get copies of all keys, as without branches in place"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for module in (step, drafting, tree_drafter):
        module.perf_counter = CLOCKS[args.clock]  # type: ignore[attr-defined]
    found = {"random_words": random_words, "stream": stream, "join": join}[args.what](args)
    settings = {name: str(value) for name, value in vars(args).items()}
    print(json.dumps({**found, "machine": machine(), "settings": settings}))
    if found["differing"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
