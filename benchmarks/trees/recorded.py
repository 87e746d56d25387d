"""Tokens per pass of keyed drafts without running the target again: the text is known, so a pass is a walk along it.

    python -m benchmarks.trees.recorded texts --prompts FILE --temperature 1 --texts T1.json
    python -m benchmarks.trees.recorded grid --texts T1.json --method eagle3 --model FOLDER --nodes 32 --zetas 0 1

Under `keyed` the text is a function of the seed alone, whatever was drafted. So it is decoded once, plainly, and its
hidden states are kept; then every cell of the grid drafts for the same passes that the engine would run: from each
pass's start the drafter builds its draft, and as many tokens count as it has of the text. What is measured is exactly
the engine's number of passes (`--check` runs the engine on the first prompts and compares), for the price of drafting.
Intervals are those of `bench trees`: a ratio of sums over prompts. A cell's gain over zeta 0 is of the same texts; its
interval is the paired one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.first.common import machine, pruned_drafter
from benchmarks.trees.common import add_model_flags, open_target
from draftproof import LLM, SamplingParams
from draftproof.bench.prompts import built_in
from draftproof.bench.ratio import ratio
from draftproof.bench.trees import read_prompts
from draftproof.config import SpeculativeConfig
from draftproof.drafters import make_drafter
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.sharpened import chain_power
from draftproof.drafters.tree import tree_drafter_of
from draftproof.noise import KeyedNoise
from draftproof.verify import get_verifier

CHAIN_LENGTH = 7
BATCH = 16


def texts(args: argparse.Namespace) -> dict[str, Any]:
    """Plain decoding of every prompt, many at once."""
    chosen = args.num_per_kind
    prompts = built_in(chosen) if args.prompts is None else read_prompts(args.prompts, chosen)
    target, tokenizer = open_target(args, num_slots=BATCH)
    llm = LLM.from_target(target, tokenizer)
    ids = [llm.encode_chat([{"role": "user", "content": prompt.text}]) for prompt in prompts]
    many = [_params(args, args.seed + index) for index in range(len(ids))]
    outputs = llm.generate(ids, many)
    return {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "texts": [
            {"kind": prompt.kind, "seed": params.seed, "prompt_ids": own, "output_ids": output.outputs[0].token_ids}
            for prompt, own, params, output in zip(prompts, ids, many, outputs, strict=True)
        ],
    }


def _params(args: argparse.Namespace, seed: int) -> SamplingParams:
    return SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=seed, max_tokens=args.max_tokens)


def opened(args: argparse.Namespace, *, num_slots: int) -> tuple[LLM, Any, dict[str, Any]]:
    """(plain engine, drafter over its target, the fields that name it)"""
    target, tokenizer = open_target(args, num_slots=num_slots)
    llm, method = LLM.from_target(target, tokenizer), {"method": args.method, "model": args.model}
    if args.method == "draft_model" and args.model is None:
        return llm, pruned_drafter(llm), {"method": "draft_model", "model": "layers"}
    return llm, make_drafter(SpeculativeConfig(**method), target, tokenizer, llm.chain), method


class Walks:
    """The recorded texts, in slots of a target whose length is wherever each walk stands."""

    def __init__(self, args: argparse.Namespace) -> None:
        recorded = json.loads(args.texts.read_text())
        args.temperature, args.top_p = recorded["temperature"], recorded["top_p"]
        self.texts = [text for text in recorded["texts"] if len(text["output_ids"]) > 1]
        self.llm, self.drafter, self.method = opened(args, num_slots=len(self.texts))
        target: Any = self.llm.target
        for slot, text in enumerate(self.texts):
            target.prefill(slot, [*text["prompt_ids"], *text["output_ids"]])
        self.at = [0] * len(self.texts)
        target.length = self.at.__getitem__
        self.params = [_params(args, text["seed"]) for text in self.texts]

    def passes(self, fields: dict[str, Any]) -> list[int]:
        """Of each text the passes that the engine runs with this configuration, drafting in every one."""
        config = SpeculativeConfig(**self.method, verifier="keyed", **{"draft_length": "fixed", **fields})
        drafter = self.drafter if config.topology == "chain" else tree_drafter_of(self.drafter, config)
        learns = config.draft_length == "auto"
        power, target = chain_power(config, get_verifier("keyed")), self.llm.target
        rows = [
            self.llm.chain.resolve(params, self.llm.tokenizer, target.vocab_size, target.eos_token_ids)
            for params in self.params
        ]
        noises = [KeyedNoise(text["seed"]) for text in self.texts]
        contexts = [list(text["prompt_ids"]) for text in self.texts]
        histories = [row.first_history(text["prompt_ids"]) for row, text in zip(rows, self.texts, strict=True)]
        counts, num_done = [0] * len(self.texts), [0] * len(self.texts)
        while going := [i for i, text in enumerate(self.texts) if num_done[i] < len(text["output_ids"])]:
            requests = []
            for i in going:
                self.at[i] = len(contexts[i]) - 1
                # The engine asks for no more than can be kept, and caches a prompt before it drafts.
                most = min(config.most_drafted, self.params[i].max_tokens - num_done[i] - 1) if num_done[i] else 0
                requests.append(
                    DraftRequest(i, contexts[i], most, noises[i], True, rows[i], histories[i], law_power=power)
                )
            for i, draft in zip(going, drafter.propose(requests), strict=True):
                output = self.texts[i]["output_ids"]
                path = path_along(draft, output[num_done[i] :])
                num = min(1 + len(path), len(output) - num_done[i])
                new = output[num_done[i] : num_done[i] + num]
                if learns:
                    drafter.observe(i, [*contexts[i], *new], verdict_of(len(contexts[i]), path, new))
                contexts[i].extend(new)
                histories[i] = histories[i].extended(tuple(new))
                num_done[i] += num
                counts[i] += 1
        for i in range(len(self.texts)):
            drafter.release(i)
        return counts


def path_along(draft: Any, coming: list[int]) -> tuple[int, ...]:
    """The draft's nodes that the coming tokens go through."""
    path: list[int] = []
    for token_id in coming:
        above = path[-1] if path else -1
        found = [i for i, parent in enumerate(draft.parents) if parent == above and draft.token_ids[i] == token_id]
        if not found:
            break
        path.append(found[0])
    return tuple(path)


def verdict_of(start: int, path: tuple[int, ...], token_ids: list[int]) -> Any:
    """As much of a verdict as drafters learn from."""
    decisions = [SimpleNamespace(position=start)]
    return SimpleNamespace(path=path, num_accepted=len(path), decisions=decisions, token_ids=token_ids)


def grid(args: argparse.Namespace) -> dict[str, Any]:
    """Every cell over the same texts."""
    walks = Walks(args)
    # The first pass of a text caches its prompt, in every cell alike: its token is not counted.
    tokens = [len(text["output_ids"]) - 1 for text in walks.texts]
    kinds = [text["kind"] for text in walks.texts]
    cells = (
        {
            f"chain {CHAIN_LENGTH}, zeta {zeta:g}": {"num_speculative_tokens": CHAIN_LENGTH, "noise_weight": zeta}
            for zeta in args.zetas
            if not args.no_chains
        }
        | {
            f"{builder} {nodes}, zeta {zeta:g}{_power(sharpness)}": {
                "topology": "tree",
                "num_tree_nodes": nodes,
                "tree_builder": builder,
                "noise_weight": zeta,
                "sharpness": sharpness,
            }
            for builder in args.builders
            for nodes in args.nodes
            for zeta in args.zetas
            for sharpness in args.sharpness
            if zeta or sharpness == args.sharpness[0]
        }
        | {
            f"{builder} {nodes}, tuned": {
                "topology": "tree",
                "num_tree_nodes": nodes,
                "tree_builder": builder,
                "draft_length": "auto",
            }
            for builder in args.builders
            for nodes in args.nodes
            if args.tuned
        }
    )
    found, plain = {}, {}
    for name, fields in cells.items():
        passes = [count - 1 for count in walks.passes(fields)]
        figure = {"all": _ratio(tokens, passes)}
        for kind in dict.fromkeys(kinds):
            own = [i for i, other in enumerate(kinds) if other == kind]
            figure[kind] = _ratio([tokens[i] for i in own], [passes[i] for i in own])
        base, zeta = name.split(", ")[0], fields.get("noise_weight")
        if zeta == 0:
            plain[base] = passes
        if base in plain and zeta != 0:
            figure["gain over zeta 0"] = _gain(plain[base], passes)
            for kind in dict.fromkeys(kinds):
                own = [i for i, other in enumerate(kinds) if other == kind]
                figure[f"gain, {kind}"] = [sum(plain[base][i] for i in own) / sum(passes[i] for i in own) - 1]
        found[name] = figure
        print(json.dumps({name: figure}), file=sys.stderr, flush=True)
        if args.check and "draft_length" not in fields:
            _check(args, walks, fields, [count + 1 for count in passes])
    return {"temperature": args.temperature, "top_p": args.top_p, "num_texts": len(tokens), "cells": found}


def _power(sharpness: float) -> str:
    return "" if sharpness == 1 else f", sharpness {sharpness:g}"


def _ratio(tokens: list[int], passes: list[int]) -> list[float]:
    """[tokens per pass, half of its 95 % interval]"""
    return list(ratio(list(zip(tokens, passes, strict=True))))


def _gain(before: list[int], after: list[int]) -> list[float]:
    """[relative gain in tokens per pass on the same texts, half of its 95 % interval]"""
    rate, half = ratio(list(zip(before, after, strict=True)))
    return [rate - 1, half]


def _check(args: argparse.Namespace, walks: Walks, fields: dict[str, Any], passes: list[int]) -> None:
    """The engine's own passes on the first texts."""
    target, tokenizer = open_target(args, num_slots=BATCH)
    drafter: Any = None
    if args.method == "draft_model" and args.model is None:
        drafter = pruned_drafter(LLM.from_target(target, tokenizer))
    config = SpeculativeConfig(**walks.method, draft_length="fixed", verifier="keyed", **fields)
    if drafter is not None and config.topology != "chain":
        drafter = tree_drafter_of(drafter, config)
    llm = LLM.from_target(target, tokenizer, speculative_config=config, drafter=drafter)
    for text, params, count in list(zip(walks.texts, walks.params, passes, strict=True))[: args.check]:
        [output] = llm.generate([text["prompt_ids"]], params)
        if list(output.outputs[0].token_ids) != text["output_ids"]:
            print("another text: invariance does not hold here", file=sys.stderr)
        elif output.metrics.num_passes != count:
            raise SystemExit(f"{fields}: {output.metrics.num_passes} passes in the engine, {count} along the text")
        else:
            print(f"the engine agrees: {count} passes", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("texts", "grid"))
    add_model_flags(parser)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--num-per-kind", type=int)
    parser.add_argument("--nodes", type=int, nargs="+", default=[32])
    parser.add_argument("--zetas", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--builders", nargs="+", default=["best_first"])
    parser.add_argument("--sharpness", type=float, nargs="+", default=[1.0], help="of trees with zeta above 0")
    parser.add_argument("--tuned", action="store_true", help="cells that tune zeta and sharpness, from a cold start")
    parser.add_argument("--no-chains", action="store_true")
    parser.add_argument("--check", type=int, default=0, help="texts on which the engine is run as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.what == "texts":
        args.texts.write_text(json.dumps(texts(args)))
        return
    settings = {name: str(value) for name, value in vars(args).items()}
    print(json.dumps({**grid(args), "machine": machine(), "settings": settings}))


if __name__ == "__main__":
    main()
