"""Are tokens that a ratio test lets through distributed as the target says? By teacher forcing, on a learned drafter.

    python -m benchmarks.teacher_forced [--method dspark] [--num-tokens 50000] [--device cuda] [--jobs 8] > result.json

Decodes the built-in prompts at temperature 1 with drafts from our drafter of the embedded model, under `rejection`
and `block`, and runs the target once more over prompt and answer. Text i has prompt i modulo their number and seed
1000 + i; texts count in that order, a few at a time, until there are as many tokens as asked for, in however
many processes.
If each token was drawn from the target's law p given everything before it, -log p(token) - H(p) has mean 0, and sums of
it are a martingale: z = mean / standard error.
The same for a planted bug: the first token of each pass with a draft is verified against argmax p instead of p.
Passes if |z| <= 4 without and > 8 with the bug; the exit code says so. The number of tokens and seeds are fixed
beforehand.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, tee
from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.jobs import in_order
from draftproof import LLM, SamplingParams
from draftproof.bench.prompts import built_in
from draftproof.bench.trees import prompt_ids
from draftproof.core import Draft, Noise, PointMass, Verdict
from draftproof.engine import admission
from draftproof.targets.load import load_target
from draftproof.verify import get_verifier
from draftproof.verify.base import TargetRows, Verifier

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
BOUND, FAR = 4.0, 8.0


def planted(name: str) -> Verifier:
    """The verifier with the bug. Its name stays: the engine shall not know."""
    honest = get_verifier(name)

    class Planted(type(honest)):  # type: ignore[misc]
        def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
            if not len(draft):
                return super()._decide(draft, rows, noise)
            weights, ids = rows.after(-1).weights()
            top = int(np.argmax(weights))
            first = PointMass(top if ids is None else int(ids[top]))
            return super()._decide(draft, TargetRows(draft, [first, *rows._rows[1:]]), noise)

    return Planted()  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Part:
    """Some texts in a row under one verifier, with the bug or without."""

    method: str
    verifier: str
    has_bug: bool
    first: int
    size: int
    max_tokens: int
    device: str
    seed: int


@functools.cache
def _engine(method: str, verifier: str, device: str, size: int) -> LLM:
    """Of a method, the verifiers share the target."""
    config = {"method": method, "verifier": verifier, "num_speculative_tokens": 7, "draft_length": "fixed"}
    return LLM.from_target(*_target(device, size), speculative_config=config)


@functools.cache
def _target(device: str, size: int) -> tuple[Any, Any]:
    return load_target(dtype="float32", device=device, num_slots=size)


def measured(part: Part) -> Floats:
    """The surprises of its texts' tokens, one after another."""
    llm, prompts = _engine(part.method, part.verifier, part.device, part.size), built_in()
    numbers = range(part.first, part.first + part.size)
    ids = [prompt_ids(llm, prompts[number % len(prompts)].text) for number in numbers]
    params = SamplingParams(temperature=1.0, max_tokens=part.max_tokens, detokenize=False)
    honest = admission.get_verifier
    if part.has_bug:
        admission.get_verifier = lambda asked: planted(asked) if asked == part.verifier else honest(asked)
    try:
        outputs = llm.generate(ids, [replace(params, seed=part.seed + number) for number in numbers])
    finally:
        admission.get_verifier = honest
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    return surprises(llm.target.model, list(zip(ids, answers, strict=True)))


@torch.no_grad()
def surprises(model: Any, pairs: Sequence[Any]) -> Floats:
    """-log p(token) - H(p) in nats of every answer token, one text at a time, in float64 from the model's logits."""
    found = []
    for prompt, answer in pairs:
        ids = torch.tensor([[*prompt, *answer]], device=model.device)
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
        log_p = torch.log_softmax(logits, -1)
        own = log_p.gather(-1, torch.tensor(answer, device=log_p.device)[:, None])[:, 0]
        entropy = -(log_p.exp() * log_p).sum(-1)
        found.append((-own - entropy).cpu().numpy())
    return np.concatenate(found)


def figure(values: Floats) -> dict[str, float]:
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    return {"num_tokens": len(values), "mean": float(values.mean()), "error": error, "z": float(values.mean()) / error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dspark")
    parser.add_argument("--verifiers", default="rejection,block")
    parser.add_argument("--num-tokens", type=int, default=50_000, help="For each verifier; a tenth with the bug.")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=8, help="Texts decoded at once by a process.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1, help="Processes.")
    args = parser.parse_args()
    began = time.perf_counter()
    settings = [(name, has_bug) for name in args.verifiers.split(",") for has_bug in (False, True)]
    found: dict[tuple[str, bool], list[Floats]] = {setting: [] for setting in settings}

    def is_open(setting: tuple[str, bool]) -> bool:
        wanted = args.num_tokens // 10 if setting[1] else args.num_tokens
        return sum(map(len, found[setting])) < wanted

    def parts() -> Iterator[Part]:
        for first in count(0, args.max_num_seqs):
            if not (left := [setting for setting in settings if is_open(setting)]):
                return
            for name, has_bug in left:
                yield Part(
                    args.method, name, has_bug, first, args.max_num_seqs, args.max_tokens, args.device, args.seed
                )

    asked, kept = tee(parts())
    for part, values in zip(kept, in_order(measured, asked, args.jobs), strict=False):
        setting = (part.verifier, part.has_bug)
        # What was begun before it was known to be enough counts nowhere.
        if is_open(setting):
            found[setting].append(values)
            tokens = {key: sum(map(len, own)) for key, own in found.items()}
            print(round(time.perf_counter() - began), tokens, file=sys.stderr, flush=True)
    figures = {
        f"{name}, planted bug" if has_bug else name: figure(np.concatenate(own))
        for (name, has_bug), own in found.items()
    }
    passed = all(abs(item["z"]) > FAR if "bug" in key else abs(item["z"]) <= BOUND for key, item in figures.items())
    document = {
        "method": args.method, "device": args.device, "seed": args.seed, "jobs": args.jobs, "figures": figures,
        "passed": passed, "seconds": round(time.perf_counter() - began, 1), "torch": torch.__version__,
    }  # fmt: skip
    print(json.dumps(document))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
