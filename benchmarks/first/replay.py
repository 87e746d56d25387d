"""Speculation on and off give identical token ids under `invariant`; without it, differences are near ties."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.first.common import (
    chat_ids,
    engine,
    machine,
    prompts,
    pruned_drafter,
    say,
    target_of,
)
from benchmarks.first.matrix import FILTERS, METHODS, TEMPERATURES
from benchmarks.first.near_ties import explain
from draftproof import SamplingParams


def run(*, dtypes: tuple[str, ...], num_prompts: int = 8, max_tokens: int = 32) -> dict[str, Any]:
    """The matrix T x filter x drafter x dtype, `num_prompts` a cell; exact equality is the bar under `invariant`."""
    cells = [_matrix(dtype, True, num_prompts, max_tokens) for dtype in dtypes]
    without = [_matrix(dtype, False, max(1, num_prompts // 4), max_tokens) for dtype in dtypes]
    return {
        "machine": machine(num_prompts=num_prompts, max_tokens=max_tokens),
        "invariant": cells,
        "not_invariant": without,
        "holds": all(cell["num_different"] == 0 for cell in cells)
        and all(difference["near_tie"] for cell in without for difference in cell["differences"]),
    }


def _matrix(dtype: str, invariant: bool, num_prompts: int, max_tokens: int) -> dict[str, Any]:
    target, tokenizer = target_of(dtype, invariant=invariant)
    plain = engine(target, tokenizer, None)
    drafter = pruned_drafter(plain, dtype)
    chosen = [chat_ids(plain, text) for text in (prompts("copy_heavy") + prompts("ordinary"))[:num_prompts]]
    num_pairs = num_tokens = num_different = 0
    accepted = dict.fromkeys(METHODS, 0)
    differences = []
    for temperature in TEMPERATURES:
        for name, filters in FILTERS.items():
            many = [
                SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, **filters)
                for seed in range(num_prompts)
            ]
            expected = [output.outputs[0].token_ids for output in plain.generate(chosen, many)]
            for method in METHODS:
                say(f"replay {dtype} invariant={invariant} T={temperature} {name} {method}")
                config = {"draft_length": "fixed", "num_speculative_tokens": 3 if method == "draft_model" else 8}
                llm = engine(target, tokenizer, method, drafter=drafter if method == "draft_model" else None, **config)
                for index, output in enumerate(llm.generate(chosen, many)):
                    found = output.outputs[0].token_ids
                    num_pairs += 1
                    num_tokens += len(found)
                    accepted[method] += output.metrics.speculative_decoding["num_accepted_draft_tokens"]
                    if found != expected[index]:
                        num_different += 1
                        if not invariant:
                            where = explain(plain, chosen[index], expected[index], found, many[index])
                            differences.append({"filter": name, "temperature": temperature, "method": method} | where)
    return {
        "dtype": dtype,
        "invariant": invariant,
        "shapes": target.shapes.name,
        "num_pairs": num_pairs,
        "num_tokens": num_tokens,
        "num_different": num_different,
        "num_accepted_by_method": accepted,
        "differences": differences,
    }


@torch.no_grad()
def greedy_gap(*, dtype: str, max_tokens: int = 64, eps: float = 1e-3) -> dict[str, Any]:
    """Teacher-forced at T = 0: how far every committed token lies below its row's maximum, in logits."""
    target, tokenizer = target_of(dtype, invariant=False)
    worst, num_tokens = 0.0, 0
    for method in ("ngram", "suffix"):
        llm = engine(target, tokenizer, method, draft_length="fixed")
        for text in prompts("copy_heavy"):
            prompt_ids = chat_ids(llm, text)
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
            token_ids = llm.generate([prompt_ids], params)[0].outputs[0].token_ids
            whole = torch.tensor([[*prompt_ids, *token_ids]])
            logits = target.model(whole, use_cache=False).logits[0, len(prompt_ids) - 1 : -1].float()
            gaps = logits.max(-1).values - logits.gather(-1, torch.tensor(token_ids)[:, None])[:, 0]
            worst, num_tokens = max(worst, float(gaps.max())), num_tokens + len(token_ids)
    return {
        "machine": machine(dtype=dtype),
        "num_tokens": num_tokens,
        "worst_gap": worst,
        "eps": eps,
        "holds": worst <= eps,
    }
