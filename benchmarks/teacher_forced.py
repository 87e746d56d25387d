"""Are tokens that a ratio test lets through distributed as the target says? By teacher forcing, on a learned drafter.

    python -m benchmarks.teacher_forced [--method dspark] [--num-tokens 50000] [--device cuda] > teacher_forced.json

Decodes the built-in prompts at temperature 1 with drafts from our drafter of the embedded model, under `rejection` and
`block`, and runs the target once more over prompt and answer. If each token was drawn from the target's law p given
everything before it, -log p(token) - H(p) has mean 0, and sums of it are a martingale: z = mean / standard error.
The same for a planted bug: the first token of each pass with a draft is verified against argmax p instead of p.
Passes if |z| <= 4 without and > 8 with the bug; the exit code says so. The number of tokens and seeds are fixed
beforehand.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from draftproof import LLM, SamplingParams
from draftproof.bench.prompts import built_in
from draftproof.bench.trees import prompt_ids
from draftproof.core import Draft, Noise, PointMass, Verdict
from draftproof.engine import admission
from draftproof.verify import get_verifier
from draftproof.verify.base import TargetRows, Verifier

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


def generate(llm: LLM, prompts: Sequence[list[int]], num_tokens: int, max_tokens: int, seed: int) -> list[Any]:
    """(prompt, answer) pairs with at least so many answer tokens in all, each prompt in turn with a seed of its own."""
    found: list[Any] = []
    while sum(len(answer) for _, answer in found) < num_tokens:
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, detokenize=False)
        many = [replace(params, seed=seed + len(found) + index) for index in range(len(prompts))]
        outputs = llm.generate(list(prompts), many)
        found += [(ids, list(out.outputs[0].token_ids)) for ids, out in zip(prompts, outputs, strict=True)]
    return found


@torch.no_grad()
def surprises(model: Any, pairs: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
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


def figure(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    return {"num_tokens": len(values), "mean": float(values.mean()), "error": error, "z": float(values.mean()) / error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="dspark")
    parser.add_argument("--verifiers", default="rejection,block")
    parser.add_argument("--num-tokens", type=int, default=50_000, help="For each verifier; a tenth with the bug.")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--max-num-seqs", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    began, figures, honest = time.perf_counter(), {}, admission.get_verifier
    for name in args.verifiers.split(","):
        for has_bug in (False, True):
            config = {"method": args.method, "verifier": name, "num_speculative_tokens": 7, "draft_length": "fixed"}
            llm = LLM(dtype="float32", device=args.device, max_num_seqs=args.max_num_seqs, speculative_config=config)
            ids = [prompt_ids(llm, prompt.text) for prompt in built_in()]
            if has_bug:
                admission.get_verifier = lambda asked, name=name: planted(name) if asked == name else honest(asked)
            try:
                wanted = args.num_tokens // 10 if has_bug else args.num_tokens
                pairs = generate(llm, ids, wanted, args.max_tokens, args.seed)
            finally:
                admission.get_verifier = honest
            figures[f"{name}, planted bug" if has_bug else name] = figure(surprises(llm.target.model, pairs))
            print(name, has_bug, figures, file=sys.stderr, flush=True)
    passed = all(abs(item["z"]) > FAR if "bug" in key else abs(item["z"]) <= BOUND for key, item in figures.items())
    document = {"method": args.method, "device": args.device, "seed": args.seed, "figures": figures, "passed": passed,
                "seconds": round(time.perf_counter() - began, 1), "torch": torch.__version__}  # fmt: skip
    print(json.dumps(document))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
