"""Audits of llama.cpp's server, with and without speculation, on the tiny models of `benchmarks.tiny_models`.

    python -m benchmarks.audit_llamacpp OUT_FOLDER --tiny FOLDER --method {none,draft,draft_probabilistic,ngram_simple}
        [--only scored greedy replay] [--num-tokens 20000] [--seeds 1 2]

Written for the package xllamacpp 2026.10.11549, which carries llama.cpp's own server in a wheel; it is started in this
process and asked over HTTP, as any endpoint. Settings: the audit's matrix, less what the server's completions don't
have; the law is the preset "llama.cpp". Greedy mode is asked as temperature 0. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.tiny_models import EOS, NUM_POSITIONS, PROMPTS
from draftproof import SamplerChain, SamplingParams
from draftproof.audit import (
    Audit,
    EndpointEngine,
    Scorer,
    TorchModel,
    audit_greedy,
    audit_replay,
    audit_scored,
    sampler_matrix,
    write_page,
)

NUM_DRAFT = 4
NUM_SLOTS = 4
METHODS = ("none", "draft", "draft_probabilistic", "ngram_simple")
MODES = ("scored", "greedy", "replay")


def start(folder: str, method: str) -> Any:
    """The server, with samplers that do nothing unless a request asks."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = f"{folder}/target.gguf"
    params.n_ctx, params.n_parallel = NUM_POSITIONS * NUM_SLOTS, NUM_SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # half precision would be rounding
    sampling = params.sampling
    sampling.temp, sampling.top_k, sampling.top_p, sampling.min_p, sampling.penalty_repeat = 1.0, 0, 1.0, 0.0, 1.0
    kinds = xllamacpp.common_speculative_type
    if method.startswith("draft"):
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max, draft.probabilistic = f"{folder}/draft.gguf", NUM_DRAFT, "prob" in method
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = 1
    elif method == "ngram_simple":
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        params.speculative.ngram_simple.size_n, params.speculative.ngram_simple.size_m = 1, NUM_DRAFT
    return xllamacpp.Server(params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--tiny", required=True)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--only", nargs="*", choices=MODES, default=MODES)
    parser.add_argument("--num-tokens", type=int, default=20_000)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--logit-error", type=float, default=2e-2)
    given = parser.parse_args()
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    server = start(given.tiny, given.method)
    engine = EndpointEngine(
        f"{server.listening_address}/v1", f"{given.tiny}/target.gguf", concurrency=NUM_SLOTS, dialect="llama.cpp"
    )
    engine.name = f"llama.cpp's server (xllamacpp {version('xllamacpp')}), {given.method}"
    target = TorchModel(AutoModelForCausalLM.from_pretrained(f"{given.tiny}/target", dtype=torch.float32))
    draft = None
    if given.method == "draft_probabilistic":
        draft = TorchModel(AutoModelForCausalLM.from_pretrained(f"{given.tiny}/draft", dtype=torch.float32))
    results = []
    for seed in given.seeds:
        scorer = Scorer(target, draft=draft, chain=SamplerChain(preset="llama.cpp"), eos_token_ids=(EOS,), seed=seed)
        for mode in given.only:
            audit = modes(engine, scorer, seed, given)[mode]()
            name = f"llamacpp-{given.method.replace('_', '-')}-{mode}-seed{seed}"
            document = {
                **audit.to_dict(),
                "audit_seed": seed,
                "script": "benchmarks/audit_llamacpp.py",
                "models": "benchmarks.tiny_models",
                "versions": {p: version(p) for p in ("xllamacpp", "torch", "transformers", "numpy", "scipy")},
            }
            (folder / f"{name}.json").write_text(json.dumps(document, default=str) + "\n", encoding="utf-8")
            write_page(audit, folder / f"{name}.html")
            results.append({"name": name, "verdict": audit.verdict.value, "summary": audit.summary,
                            "tokens": audit.numbers.get("tokens"), "refused": dict(audit.refused)})  # fmt: skip
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"results": results}))


def without_eos(settings: dict[str, SamplingParams]) -> dict[str, SamplingParams]:
    """The same with EOS banned, as this server's ignore_eos does, and said so to the scorer."""
    return {
        name: replace(params, ignore_eos=True, logit_bias={**(params.logit_bias or {}), EOS: -100.0})
        for name, params in settings.items()
    }


def modes(
    engine: EndpointEngine, scorer: Scorer, seed: int, given: argparse.Namespace
) -> dict[str, Callable[[], Audit]]:
    """An audit for each mode's name."""
    settings, greedy = without_eos(sampler_matrix()), without_eos(sampler_matrix(greedy=True))
    plain = without_eos({"temperature 1": SamplingParams()})
    return {
        "scored": lambda: audit_scored(
            engine, scorer, PROMPTS, settings=settings, num_tokens=given.num_tokens, max_tokens=48,
            batch_size=16, logit_error=given.logit_error, seed=seed,
        ),
        "greedy": lambda: audit_greedy(
            engine, scorer, PROMPTS, settings=greedy, max_tokens=64, logit_error=given.logit_error,
            seed=seed,
        ),
        "replay": lambda: audit_replay(
            engine, engine, PROMPTS, settings=plain, num_seeds=4, max_tokens=48, batch_size=16, seed=seed
        ),
    }  # fmt: skip


if __name__ == "__main__":
    main()
