"""Audits of published engines on tiny random models: one report each, under docs/audits/.

    python -m benchmarks.audit_packages OUT_FOLDER [--only NAME …] [--num-tokens 12000] [--seeds 1 2]

Target: a Llama of random weights, 2 layers, width 32, 32 tokens, float32; drafter: another of one layer. The packages
must be installed beside draftproof: flashspec 0.3.1, sequential-speculative-decoding 0.1.1, dflash 0.1.0. An engine
whose package is missing is skipped with a line on stderr. Every engine is audited under two seeds: what is not
lossless under one alone is not claimed. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof import SamplerChain, SamplingParams
from draftproof.audit import (
    Audit,
    OurEngine,
    Scorer,
    TorchModel,
    TransformersEngine,
    audit_rule,
    audit_scored,
    write_page,
)
from draftproof.audit.engine import Generation, Refusal, as_engine

VOCAB_SIZE = 32
NUM_DRAFT = 4
TYPICAL_MASS = 0.3  # at flashspec's default, 1.0, its typical acceptance accepts nothing
PROMPTS = [[(7 * i + 3 * j) % VOCAB_SIZE for j in range(4 + i % 3)] for i in range(8)]
SAMPLERS = {
    "temperature 1": SamplingParams(ignore_eos=True),
    "temperature 0.7, top_k 8": SamplingParams(temperature=0.7, top_k=8, ignore_eos=True),
    "top_p 0.8": SamplingParams(top_p=0.8, ignore_eos=True),
    "repetition_penalty 1.3": SamplingParams(repetition_penalty=1.3, ignore_eos=True),
}
TEMPERATURES = {
    "temperature 1": SamplingParams(ignore_eos=True),
    "temperature 0.7": SamplingParams(temperature=0.7, ignore_eos=True),
}


def llama(num_layers: int, seed: int) -> Any:
    """A random Llama whose laws are neither flat nor certain."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=num_layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.25,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    torch.default_generator.manual_seed(seed)
    return LlamaForCausalLM(config).float().eval()


def without_last_layer(target: Any) -> Any:
    """The target less its last layer, sharing nothing with it: a drafter that agrees with it now and then."""
    pruned = copy.deepcopy(target)
    del pruned.model.layers[-1]
    pruned.config.num_hidden_layers -= 1
    return pruned


def of_steps(step: Callable[..., Any], name: str, temperature_of: Callable[[SamplingParams], float]) -> Any:
    """An engine of a step (input ids [1, n], temperature) -> longer input ids."""

    def generate(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Generation:
        if params.top_k or params.top_p < 1 or params.repetition_penalty != 1:
            raise Refusal("temperature is this engine's only parameter")
        torch.default_generator.manual_seed(seed)
        ids, starts, most = torch.tensor([list(prompt_ids)]), [], params.max_tokens or 16
        while ids.shape[1] - len(prompt_ids) < most:
            starts.append(ids.shape[1] - len(prompt_ids))
            ids = step(ids, temperature_of(params))
        output = ids[0, len(prompt_ids) :].tolist()[:most]
        return Generation(tuple(output), pass_starts=tuple(starts))

    return as_engine(generate, name=name)


def seqspec(method: str, target: Any, draft: Any) -> Any:
    from seqspecdecod.capped_hsd import capped_hsd_step
    from seqspecdecod.naive_hsd import naive_hsd_step
    from seqspecdecod.standard_sd import standard_speculative_step

    run = {"standard": standard_speculative_step, "naive_hsd": naive_hsd_step, "capped_hsd": capped_hsd_step}[method]

    def step(ids: torch.Tensor, temperature: float) -> torch.Tensor:
        longer: torch.Tensor = run(
            draft, target, ids, gamma=NUM_DRAFT, draft_temperature=temperature, target_temperature=temperature
        )[0]
        return longer

    return of_steps(step, f"sequential-speculative-decoding 0.1.1, {method}", lambda params: params.temperature)


def flashspec(variant: str, target: Any, draft: Any) -> Any:
    from flashspec.engine.hf_drafter import HuggingFaceDrafter
    from flashspec.engine.ngram import NgramDrafter
    from flashspec.engine.speculative import SpeculativeEngine
    from flashspec.engine.verifier import TargetModel
    from flashspec.utils.config import BanditConfig, FlashSpecConfig, SamplingConfig

    device = torch.device("cpu")

    def generate(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Generation:
        if params.top_k or params.top_p < 1 or params.repetition_penalty != 1:
            raise Refusal("temperature is this engine's only parameter")
        sampling = SamplingConfig(
            variant="rejection" if variant == "ngram" else variant,
            top_p=TYPICAL_MASS if variant == "typical" else 1.0,
            temperature=params.temperature, gamma=NUM_DRAFT, seed=seed & 0x7FFFFFFF,
        )  # fmt: skip
        config = FlashSpecConfig(
            sampling=sampling, bandit=BanditConfig(n_arms=1), drafter_strategy="bandit", device="cpu", dtype="float32"
        )  # fmt: skip
        drafter = (
            NgramDrafter()
            if variant == "ngram"
            else HuggingFaceDrafter("draft", device, temperature=params.temperature, model=draft)
        )
        made = SpeculativeEngine(config, [drafter], TargetModel("target", device, torch.float32, model=target), None)
        result = made.generate(torch.tensor([list(prompt_ids)]), max_new_tokens=params.max_tokens or 16)
        ids = result.token_ids if hasattr(result, "token_ids") else result.output_ids
        row = [int(i) for i in torch.as_tensor(ids).reshape(-1).tolist() if int(i) >= 0]
        row = row[len(prompt_ids) :] if row[: len(prompt_ids)] == list(prompt_ids) else row
        return Generation(tuple(row[: params.max_tokens]))

    return as_engine(generate, name=f"flashspec 0.3.1, {variant}")


def dflash_rule(
    target_probs: Any, draft_probs: Any, draft_ids: Sequence[int], random: np.random.Generator
) -> list[int]:
    """dflash 0.1.0's verification function; its generator is the global one, seeded from the audit's."""
    from dflash.model import _rejection_sample

    torch.default_generator.manual_seed(int(random.integers(1 << 62)))
    accepted, token = _rejection_sample(
        torch.tensor([list(draft_ids)]), torch.from_numpy(target_probs)[None], torch.from_numpy(draft_probs)[None]
    )
    return [*draft_ids[:accepted], int(token)]


def audits(num_tokens: int, seed: int) -> dict[str, Callable[[], Audit]]:
    target = llama(2, 1)
    draft = without_last_layer(target)
    hf = SamplerChain(preset="hf")

    def scored(make: Callable[[], Any], settings: dict[str, SamplingParams], chain: SamplerChain | None = None,
               logit_error: float = 1e-4) -> Callable[[], Audit]:  # fmt: skip
        def run() -> Audit:
            scorer = Scorer(TorchModel(target), draft=TorchModel(draft), chain=chain, seed=seed)
            return audit_scored(make(), scorer, PROMPTS, settings=settings, num_tokens=num_tokens, max_tokens=24,
                                batch_size=16, logit_error=logit_error, seed=seed, stop_early=True)  # fmt: skip

        return run

    return {
        "transformers-plain": scored(lambda: TransformersEngine(target), SAMPLERS, hf),
        "transformers-assistant": scored(
            lambda: TransformersEngine(target, assistant=draft, num_draft=NUM_DRAFT), SAMPLERS, hf
        ),
        "transformers-prompt-lookup": scored(lambda: TransformersEngine(target, prompt_lookup=NUM_DRAFT), SAMPLERS, hf),
        **{
            f"draftproof-draft-model-{verifier}": scored(lambda v=verifier: ours(target, v, draft), SAMPLERS)  # type: ignore[misc]
            for verifier in ("keyed", "rejection", "block", "match")
        },
        "draftproof-ngram-keyed": scored(lambda: ours(target, "keyed"), SAMPLERS),
        "draftproof-ngram-rejection": scored(lambda: ours(target, "rejection"), SAMPLERS),
        "draftproof-ngram-block": scored(lambda: ours(target, "block"), SAMPLERS),
        "seqspec-standard": scored(lambda: seqspec("standard", target, draft), TEMPERATURES),
        "seqspec-naive-hsd": scored(lambda: seqspec("naive_hsd", target, draft), TEMPERATURES),
        "seqspec-capped-hsd": scored(lambda: seqspec("capped_hsd", target, draft), TEMPERATURES),
        "flashspec-rejection": scored(lambda: flashspec("rejection", target, draft), TEMPERATURES),
        "flashspec-ngram": scored(lambda: flashspec("ngram", target, draft), TEMPERATURES),
        "flashspec-typical": scored(lambda: flashspec("typical", target, draft), TEMPERATURES),
        "dflash-rule": lambda: audit_rule(
            dflash_rule, coins="generator", name="dflash 0.1.0, _rejection_sample", num_tokens=num_tokens,
            large_vocabulary=False, seed=seed,
        ),
    }  # fmt: skip


def ours(target: Any, verifier: str, draft: Any = None) -> OurEngine:
    """draftproof with `draft` as its draft model, or with n-grams."""
    from draftproof import LLM
    from draftproof.drafters.draft_model import DraftModelDrafter
    from draftproof.targets.hf import HFTarget

    config: dict[str, Any] = {"num_speculative_tokens": NUM_DRAFT, "verifier": verifier}
    if draft is None:
        config |= {"method": "ngram", "prompt_lookup_min": 1}
        return OurEngine(LLM.from_target(HFTarget(target, num_slots=16), None, speculative_config=config))
    drafter = DraftModelDrafter(
        HFTarget(draft, num_slots=16), SamplerChain(), target_tokenizer=None, draft_tokenizer=None
    )
    config |= {"method": "draft_model", "model": "tiny"}
    llm = LLM.from_target(HFTarget(target, num_slots=16), None, speculative_config=config, drafter=drafter)
    return OurEngine(llm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--num-tokens", type=int, default=12_000)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2])
    given = parser.parse_args()
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for seed in given.seeds:
        for name, run in audits(given.num_tokens, seed).items():
            if given.only and name not in given.only:
                continue
            try:
                audit = run()
            except ImportError as error:
                print(f"skipped {name}: {error}", file=sys.stderr)
                continue
            document = {
                **audit.to_dict(),
                "versions": versions(),
                "audit_seed": seed,
                "script": "benchmarks/audit_packages.py",
            }
            (folder / f"{name}-seed{seed}.json").write_text(json.dumps(document, default=str) + "\n", encoding="utf-8")
            if seed == given.seeds[0]:
                write_page(audit, folder / f"{name}.html")
            results.append({"name": name, "seed": seed, "verdict": audit.verdict.value, "summary": audit.summary,
                            "tokens": audit.numbers.get("tokens"), "refused": list(dict(audit.refused))})  # fmt: skip
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"results": results, "versions": versions(), "num_tokens": given.num_tokens}))


def versions() -> dict[str, str | None]:
    """Of what was audited and of what decides the numbers."""
    found: dict[str, str | None] = {}
    names = (
        "draftproof",
        "torch",
        "transformers",
        "numpy",
        "scipy",
        "flashspec",
        "sequential-speculative-decoding",
        "dflash",
    )
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


if __name__ == "__main__":
    main()
