"""Speculation on and off give identical token ids under `invariant`; without it, differences are near ties.

The matrix is a list of cells, each with its own prompts run as one batch, so that a machine with many cores can run
every n-th cell in a process of its own (`shard`) and put the results together (`merged`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
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
from benchmarks.first.matrix import METHODS, SETTINGS
from benchmarks.first.near_ties import explain, plain_row
from draftproof import LLM, SamplingParams

MAX_NUM_SEQS = 8


@dataclass(frozen=True, order=True)
class Cell:
    """One target and one setting of matrix.SETTINGS; every drafter runs in it."""

    dtype: str
    invariant: bool
    setting: str


def cells(dtypes: Sequence[str]) -> list[Cell]:
    """The whole matrix, under `invariant` and without."""
    return [Cell(dtype, flag, name) for dtype in dtypes for flag in (True, False) for name in SETTINGS]


def run(
    *, dtypes: Sequence[str], num_prompts: int = 8, max_tokens: int = 32, shard: tuple[int, int] = (0, 1)
) -> dict[str, Any]:
    """Every shard[1]-th cell from shard[0] on, `num_prompts` each (without `invariant` a quarter of them)."""
    chosen = sorted(cells(dtypes)[shard[0] :: shard[1]])
    records = []
    for (dtype, invariant), group in groupby(chosen, key=lambda cell: (cell.dtype, cell.invariant)):
        target, tokenizer = target_of(dtype, invariant=invariant, num_slots=MAX_NUM_SEQS)
        plain = engine(target, tokenizer, None)
        drafter = pruned_drafter(plain)
        num = num_prompts if invariant else max(1, num_prompts // 4)
        records += [_run_cell(cell, plain, drafter, num, max_tokens) for cell in group]
    return _judged(machine(num_prompts=num_prompts, max_tokens=max_tokens, max_num_seqs=MAX_NUM_SEQS), records)


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results of all shards as one. Raises ValueError if a cell is missing, is there twice, or settings differ."""
    machines = [result["machine"] for result in results]
    if any(found != machines[0] for found in machines):
        raise ValueError(f"the shards were run on different machines or with other settings: {machines}")
    records = [record for result in results for record in result["cells"]]
    found = sorted(Cell(record["dtype"], record["invariant"], record["setting"]) for record in records)
    expected = sorted(cells(sorted({cell.dtype for cell in found})))
    if found != expected:
        raise ValueError(f"{len(found)} cells were run, {len(expected)} make the matrix; missing or twice: "
                         f"{sorted(set(expected) ^ set(found)) or 'twice'}")  # fmt: skip
    return _judged(machines[0], records)


def _judged(where: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    invariant = [record for record in records if record["invariant"]]
    without = [record for record in records if not record["invariant"]]
    return {
        "machine": where,
        "invariant": _total(invariant),
        "not_invariant": _total(without),
        "cells": records,
        "holds": all(record["num_different"] == 0 for record in invariant)
        and all(difference["near_tie"] for record in without for difference in record["differences"]),
    }


def _total(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    totals = {name: 0 for name in ("num_pairs", "num_tokens", "num_different", "num_near_ties")}
    accepted = dict.fromkeys(METHODS, 0)
    for record in records:
        for name in ("num_pairs", "num_tokens", "num_different"):
            totals[name] += record[name]
        totals["num_near_ties"] += sum(difference["near_tie"] for difference in record["differences"])
        for method, num in record["num_accepted_by_method"].items():
            accepted[method] += num
    return {**totals, "num_accepted_by_method": accepted}


def _run_cell(cell: Cell, plain: LLM, drafter: Any, num_prompts: int, max_tokens: int) -> dict[str, Any]:
    asked = [chat_ids(plain, text) for text in (prompts("copy_heavy") + prompts("ordinary"))[:num_prompts]]
    many = [SamplingParams(seed=seed, max_tokens=max_tokens, **SETTINGS[cell.setting]) for seed in range(num_prompts)]
    expected = [output.outputs[0].token_ids for output in plain.generate(asked, many)]
    num_tokens = num_different = 0
    accepted, differences = dict.fromkeys(METHODS, 0), []
    for method in METHODS:
        say(f"replay {cell.dtype} invariant={cell.invariant} {cell.setting} {method}")
        config = {"draft_length": "fixed", "num_speculative_tokens": 3 if method == "draft_model" else 8}
        given = drafter if method == "draft_model" else None
        llm = engine(plain.target, plain.tokenizer, method, drafter=given, **config)
        for index, output in enumerate(llm.generate(asked, many)):
            found = output.outputs[0].token_ids
            num_tokens += len(found)
            accepted[method] += output.metrics.speculative_decoding["num_accepted_draft_tokens"]
            if found != expected[index]:
                num_different += 1
                if not cell.invariant:
                    where = explain(plain, asked[index], expected[index], found, many[index])
                    differences.append({"method": method, "prompt": index} | where)
    return {
        "dtype": cell.dtype,
        "invariant": cell.invariant,
        "setting": cell.setting,
        "shapes": plain.target.shapes.name,
        "num_pairs": num_prompts * len(METHODS),
        "num_tokens": num_tokens,
        "num_different": num_different,
        "num_accepted_by_method": accepted,
        "differences": differences,
    }


@torch.no_grad()
def greedy_gap(*, dtype: str, max_tokens: int = 64) -> dict[str, Any]:
    """Teacher-forced at T = 0: how far every committed token lies below its row's maximum, in logits.

    eps: 1e-3 in float32. In bfloat16 a logit's last bit is larger than that, and eps is twice the measured error: the
    largest difference of any logit between the teacher-forced row and plain decoding's, token by token, which no
    speculation has a part in. A token that is the maximum of a row within that error lies at most so far below.
    """
    target, tokenizer = target_of(dtype, invariant=False)
    worst, error, num_tokens = 0.0, 0.0, 0
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
            # The same rows once for each prompt and drafter, a few of them: the error is a property of the kernels.
            for row in range(0, len(token_ids), 8):
                plain = plain_row(llm, prompt_ids, token_ids[:row])
                error = max(error, float((plain - logits[row]).abs().max()))
    eps = 1e-3 if target.dtype == torch.float32 else 2 * error
    return {
        "machine": machine(dtype=dtype),
        "num_tokens": num_tokens,
        "worst_gap": worst,
        "logit_error": error,
        "eps": eps,
        "holds": worst <= eps,
    }
