"""The engine on a CPU: plain decoding against transformers, many requests against one, where a step's time goes.

    python -m benchmarks.engine [--parts plain invariant batch step prefix] [--dtype auto] [--threads 2] [--repeats 5]

The sides take turns within each repeat, so that a load on the machine meets both; medians are compared. Outputs are
compared as well: greedy tokens with transformers', each request of a batch with itself alone. In bfloat16 two ways to
compute the same may part where transformers' own logits of the two tokens lie within NEAR_TIE units in the last place
of the largest; then tokens up to there are compared, and the distance is told. The last line on stdout is one JSON
document; exit code 1 if a bar is missed or an output differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from benchmarks.first.common import chat_ids, embedded_model, machine, prompts, say, target_of
from draftproof import LLM, SamplingParams
from draftproof.targets.base import ScoreRequest
from draftproof.targets.dtype import resolve_format
from draftproof.targets.fused import FamilyPart
from draftproof.targets.products import PRODUCTS

PLAIN_BAR, BATCH_BAR = 1.6, 3.0
NEAR_TIE = 2.0
"""One unit for either side's rounding of the logit."""
INVARIANT_PLAIN_BAR, INVARIANT_STEP_BAR = 0.25, 0.05


def alternate(calls: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each call, after one round to warm up; and what each returned last."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    returned: dict[str, Any] = {}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            returned[name] = call()
            if repeat:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}, returned


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)


def plain(dtype: str, num_tokens: int, repeats: int) -> dict[str, Any]:
    """Greedy decoding of one request: ours (not invariant) over transformers' generate."""
    target, tokenizer = target_of(dtype, invariant=False)
    llm = LLM.from_target(target, tokenizer)
    theirs = embedded_model(target)
    prompt_ids = chat_ids(llm, prompts("ordinary")[0])
    ids = torch.tensor([prompt_ids])

    def generate() -> list[int]:
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
        )
        found: list[int] = out[0, len(prompt_ids) :].tolist()
        return found

    def ours() -> list[int]:
        return list(llm.generate([prompt_ids], greedy(num_tokens))[0].outputs[0].token_ids)

    seconds, tokens = alternate({"transformers": generate, "ours": ours}, repeats)
    ratio = seconds["transformers"] / seconds["ours"]
    # generate masks EOS until min_new_tokens, ours goes on after it: texts are compared up to the first EOS.
    ends = [place for place, token in enumerate(tokens["ours"]) if token in target.eos_token_ids]
    length = min([*ends, num_tokens])
    rates = {name: num_tokens / taken for name, taken in seconds.items()}
    found: dict[str, Any] = {"tokens_per_second": rates, "ratio": ratio, "bar": PLAIN_BAR}
    pairs = zip(tokens["ours"][:length], tokens["transformers"][:length], strict=True)
    parting = next((place for place, (own, other) in enumerate(pairs) if own != other), None)
    found |= {"num_tokens_compared": length if parting is None else parting, "tokens_equal": parting is None}
    if parting is not None:
        with torch.no_grad():
            logits = theirs(torch.tensor([prompt_ids + tokens["ours"][:parting]])).logits[0, -1]
        apart = logits[tokens["ours"][parting]] - logits[tokens["transformers"][parting]]
        found["apart_by_ulps"] = abs(float(apart)) / (torch.finfo(logits.dtype).eps * float(logits.abs().max()))
    is_tie = found.get("apart_by_ulps", 0.0) <= NEAR_TIE
    return {**found, "holds": is_tie and ratio >= PLAIN_BAR}


def batch(dtype: str, num_tokens: int, repeats: int, num_requests: int, invariant: bool) -> dict[str, Any]:
    """So many requests together over one at a time; sampled, each with its own seed and prompt."""
    target, tokenizer = target_of(dtype, invariant=invariant, num_slots=num_requests)
    llm = LLM.from_target(target, tokenizer, enable_prefix_caching=False)
    texts = prompts("ordinary")
    given = [chat_ids(llm, texts[index % len(texts)]) for index in range(num_requests)]
    params = [
        SamplingParams(temperature=0.7, top_p=0.95, seed=seed, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        for seed in range(num_requests)
    ]

    def together() -> list[Any]:
        return [output.outputs[0].token_ids for output in llm.generate(given, params)]

    def one_by_one() -> list[Any]:
        return [llm.generate([ids], s)[0].outputs[0].token_ids for ids, s in zip(given, params, strict=True)]

    seconds, tokens = alternate({"one by one": one_by_one, "together": together}, repeats)
    ratio = seconds["one by one"] / seconds["together"]
    num_different = sum(a != b for a, b in zip(tokens["together"], tokens["one by one"], strict=True))
    return {
        "num_requests": num_requests,
        "invariant": invariant,
        "tokens_per_second": {name: num_requests * num_tokens / taken for name, taken in seconds.items()},
        "ratio": ratio,
        "bar": BATCH_BAR,
        "num_different": num_different,
        "holds": ratio >= BATCH_BAR and not (invariant and num_different),
    }


def invariant(dtype: str, num_tokens: int, repeats: int) -> dict[str, Any]:
    """What `invariant` adds to plain decoding of one request, and to a verifying forward of 9 tokens."""
    decodes: dict[str, Callable[[], Any]] = {}
    forwards: dict[str, Callable[[], Any]] = {}
    targets = []
    for name, on in (("without", False), ("with", True)):
        target, tokenizer = target_of(dtype, invariant=on)
        llm = LLM.from_target(target, tokenizer, enable_prefix_caching=False)
        prompt_ids = chat_ids(llm, prompts("ordinary")[0])

        def forward(target: Any = target) -> None:
            target.score([ScoreRequest(0, tuple(range(5, 14)))])
            target.rewind(0, 100)

        def decode(llm: LLM = llm, prompt_ids: list[int] = prompt_ids) -> None:
            llm.generate([prompt_ids], greedy(num_tokens))

        target.prefill(0, list(range(100, 200)))
        targets.append(target)
        forwards[name], decodes[name] = forward, decode
    step_seconds, _ = alternate(forwards, 6 * repeats)
    for target in targets:
        target.release(0)
    plain_seconds, _ = alternate(decodes, repeats)
    found: dict[str, Any] = {}
    for name, seconds, bar in (
        ("plain decoding", plain_seconds, INVARIANT_PLAIN_BAR),
        ("9 tokens", step_seconds, INVARIANT_STEP_BAR),
    ):
        cost = seconds["with"] / seconds["without"] - 1
        milliseconds = {kind: 1e3 * taken for kind, taken in seconds.items()}
        found[name] = {"ms": milliseconds, "cost": cost, "bar": bar, "holds": cost <= bar}
    return found


def step(dtype: str, repeats: int) -> dict[str, Any]:
    """One forward by its number of tokens, and the linear layers alone, which read the weights: the floor."""
    target, _ = target_of(dtype, invariant=False)
    target.prefill(0, list(range(100, 200)))
    linears: list[Any] = []
    for module in target.model.modules():
        if isinstance(module, (*PRODUCTS, torch.nn.Linear)):
            linears.append(module)
        elif isinstance(module, FamilyPart) and module._index == 0:
            linears.append(module.family.product)
    results: dict[str, Any] = {}
    for width in (1, 9, 32):
        features = {
            linear.in_features: torch.zeros(1, width, linear.in_features, dtype=target.dtype) for linear in linears
        }

        def forward(width: int = width) -> None:
            target.score([ScoreRequest(0, (5,) * width)])
            target.rewind(0, 100)

        @torch.no_grad()
        def floor(features: dict[int, torch.Tensor] = features) -> None:
            for linear in linears:
                linear(features[linear.in_features])

        seconds, _ = alternate({"forward": forward, "linear layers alone": floor}, 4 * repeats)
        results[f"{width} tokens"] = {name: 1e3 * taken for name, taken in seconds.items()} | {
            "ratio": seconds["forward"] / seconds["linear layers alone"]
        }
    return {"ms": results, "holds": True}


def prefix(dtype: str, repeats: int) -> dict[str, Any]:
    """Four samples of a prompt of 400 tokens: computed four times, and once."""
    target, tokenizer = target_of(dtype, invariant=True, num_slots=4)
    given = [[7, *range(1000, 1399)]] * 4
    params = [
        SamplingParams(temperature=0.7, seed=seed, max_tokens=2, ignore_eos=True, detokenize=False) for seed in range(4)
    ]

    def samples(share: bool) -> list[Any]:
        llm = LLM.from_target(target, tokenizer, enable_prefix_caching=share)
        return [output.outputs[0].token_ids for output in llm.generate(given, params)]

    seconds, tokens = alternate({"computed": lambda: samples(False), "shared": lambda: samples(True)}, repeats)
    equal = tokens["computed"] == tokens["shared"]
    return {"seconds": seconds, "ratio": seconds["computed"] / seconds["shared"], "tokens_equal": equal, "holds": equal}


def _described(dtype: str) -> str:
    found, halves = resolve_format(dtype, torch.device("cpu"))
    return str(found).removeprefix("torch.") + (" over weights in float16" if halves else "")


def main() -> int:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=["plain", "invariant", "batch", "step", "prefix"])
    parser.add_argument("--dtype", default="auto", help="as of the command line")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-tokens", type=int, default=48)
    parser.add_argument("--num-requests", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype, tokens, repeats = given.dtype, given.num_tokens, given.repeats
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "plain": lambda: plain(dtype, tokens, repeats),
        "invariant": lambda: invariant(dtype, tokens, repeats),
        "batch": lambda: {
            f"invariant={on}": batch(dtype, tokens, repeats, given.num_requests, on) for on in (False, True)
        },
        "step": lambda: step(dtype, repeats),
        "prefix": lambda: prefix(dtype, repeats),
    }
    results: dict[str, Any] = {"machine": machine(dtype=_described(dtype), num_tokens=tokens, repeats=repeats)}
    for name in given.parts:
        say(name)
        results[name] = parts[name]()
        say(json.dumps(results[name]))
    print(json.dumps(results))
    found = [results[name] for name in given.parts]
    flat = [entry for result in found for entry in ([result] if "holds" in result else result.values())]
    return 0 if all(entry["holds"] for entry in flat) else 1


if __name__ == "__main__":
    sys.exit(main())
