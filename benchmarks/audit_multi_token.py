"""Audits of transformers' generation with MTP layers and with a DFlash assistant: one report each and seed.

    python -m benchmarks.audit_multi_token OUT_FOLDER [--only mtp-1 mtp-3 dflash] [--num-tokens 50000] [--seeds 1 2]

Models: `benchmarks.multi_token_drafters`, made from the audit's seed. Written for transformers 5.24.0, which has both.
The drafters' laws are not given to the scorer. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from transformers.utils import logging

from benchmarks.audit_packages import PROMPTS, SAMPLERS, llama, versions
from benchmarks.multi_token_drafters import dflash, with_mtp
from draftproof import SamplerChain, SamplingParams
from draftproof.audit import Scorer, TorchModel, TransformersEngine, audit_greedy, audit_scored, write_page

NAMES: Final = ("mtp-1", "mtp-3", "dflash")
BLOCK_SIZE: Final = 5
ENDING: Final = {
    "stop_token_ids": SamplingParams(stop_token_ids=(5, 11), ignore_eos=True),
    "min_tokens, top_p, stop_token_ids": SamplingParams(
        min_tokens=6, top_p=0.9, stop_token_ids=(5, 11), ignore_eos=True
    ),
}
GREEDY: Final = {
    "temperature 0": SamplingParams(temperature=0, ignore_eos=True),
    "temperature 0, repetition_penalty 1.3": SamplingParams(temperature=0, repetition_penalty=1.3, ignore_eos=True),
}


class Passes:
    """Counts the target's forward passes."""

    def __init__(self, target: Any) -> None:
        self.number = 0
        target.model.register_forward_hook(self._seen)

    def _seen(self, *_: Any) -> None:
        self.number += 1


def engine(name: str, folder: Path) -> tuple[Any, TransformersEngine]:
    """(target, engine)."""
    target = llama(2, 1)
    if name == "dflash":
        extra = {"assistant_model": dflash(target, block_size=BLOCK_SIZE), "speculation_type": "dflash"}
    else:
        target, extra = with_mtp(target, folder, num_layers=int(name[-1])), {"use_mtp": True}
    return target, TransformersEngine(target, name=f"transformers generate ({name})", extra=extra)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--num-tokens", type=int, default=50_000)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2])
    given = parser.parse_args()
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    results: list[dict[str, Any]] = []
    for name in given.only:
        with tempfile.TemporaryDirectory() as made:
            target, audited = engine(name, Path(made))
            scoring = llama(2, 1)
            passes = Passes(target)
            for seed in given.seeds:
                for mode in ("scored", "greedy"):
                    scorer = Scorer(TorchModel(scoring), chain=SamplerChain(preset="hf"), seed=seed)
                    before = passes.number
                    if mode == "scored":
                        audit = audit_scored(audited, scorer, PROMPTS, settings={**SAMPLERS, **ENDING},
                                             num_tokens=given.num_tokens, max_tokens=48, batch_size=16,
                                             logit_error=1e-4, seed=seed)  # fmt: skip
                    else:
                        audit = audit_greedy(audited, scorer, PROMPTS, settings=GREEDY, max_tokens=48, batch_size=16,
                                             logit_error=1e-4, seed=seed)  # fmt: skip
                    tokens, number = audit.numbers.get("tokens", 0), passes.number - before
                    document = {
                        **audit.to_dict(), "versions": versions(), "audit_seed": seed,
                        "script": "benchmarks/audit_multi_token.py",
                        "tokens_per_pass": round(tokens / number, 3) if number else None,
                    }  # fmt: skip
                    path = folder / f"transformers-{name}-{mode}-seed{seed}"
                    path.with_suffix(".json").write_text(json.dumps(document, default=str) + "\n", encoding="utf-8")
                    write_page(audit, path.with_suffix(".html"))
                    results.append({"name": path.name, "verdict": audit.verdict.value, "summary": audit.summary,
                                    "tokens": tokens, "tokens_per_pass": document["tokens_per_pass"],
                                    "refused": dict(audit.refused)})  # fmt: skip
                    print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"results": results, "versions": versions(), "num_tokens": given.num_tokens}))


if __name__ == "__main__":
    main()
