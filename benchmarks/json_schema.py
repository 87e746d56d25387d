"""What grammars cost and what forced tokens bring, on twenty prompts with JSON schemas; prints one JSON document.

    PYTHONPATH=src python -m benchmarks.json_schema [--prompts 20] [--max-tokens 96] [--threads 2] [--backend xgrammar]
        [--batch 1]

The embedded model answers each prompt in its chat template, greedily and at temperature 0.7 with a seed, in float32
under `invariant`: without speculation, with forced tokens alone, and with forced tokens and prompt lookup (`ngram`), in
one line and with free whitespace. Every run must give plain decoding's token ids, and every
finished text must be valid. Speeds are over the whole run of a method, prompts in turn, each after a warm-up; with a
batch above 1 there are none, and everything else, passes included, comes several times sooner.
`masks` is the time of one row's mask on top of the chain, at the states that the answers pass through.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

import jsonschema
import numpy as np
import torch

from benchmarks.first.common import PROMPTS, machine, target_of
from draftproof import LLM, SamplingParams
from draftproof.sampling import History, SamplerChain

METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "forced": {"method": "forced", "draft_length": "fixed"},
    "ngram": {"method": "ngram"},
}
TEMPERATURES = (0.0, 0.7)


def cases(num_prompts: int) -> list[dict[str, Any]]:
    """The first `num_prompts` records of benchmarks/prompts/json_schema.jsonl."""
    lines = (PROMPTS / "json_schema.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:num_prompts]]


def run_method(target: Any, tokenizer: Any, method: str, asked: list[tuple[str, SamplingParams]]) -> dict[str, Any]:
    """Outputs and figures of one method over all prompts."""
    llm = LLM.from_target(target, tokenizer, speculative_config=METHODS[method])
    if target.num_slots > 1:
        chats = [[{"role": "user", "content": prompt}] for prompt, _ in asked]
        outputs = llm.chat(chats, [params for _, params in asked])
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        num_passes = sum(output.metrics.num_passes for output in outputs)
        counts = {"outputs": outputs, "num_tokens": num_tokens, "num_passes": num_passes}
        return counts | {"tokens_per_pass": round(num_tokens / num_passes, 3)}
    llm.chat([{"role": "user", "content": asked[0][0]}], asked[0][1])
    began = time.perf_counter()
    outputs = [llm.chat([{"role": "user", "content": prompt}], params)[0] for prompt, params in asked]
    seconds = time.perf_counter() - began
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    num_passes = sum(output.metrics.num_passes for output in outputs)
    generating = [output.metrics.generation_time_ms for output in outputs]
    return {
        "outputs": outputs,
        "num_tokens": num_tokens,
        "num_passes": num_passes,
        "tokens_per_pass": round(num_tokens / num_passes, 3),
        "seconds": round(seconds, 2),
        "decoding_tokens_per_second": round(1e3 * num_tokens / sum(ms for ms in generating if ms), 2),
    }


def measure(arguments: argparse.Namespace, target: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """One record for each temperature, whitespace and method."""
    records: list[dict[str, Any]] = []
    for one_line in (True, False):
        for temperature in TEMPERATURES:
            asked = []
            for index, case in enumerate(cases(arguments.prompts)):
                structured = {
                    "json": case["schema"],
                    "disable_any_whitespace": one_line,
                    "backend": arguments.backend,
                }
                params = SamplingParams(
                    temperature=temperature, seed=index, max_tokens=arguments.max_tokens, structured_outputs=structured
                )
                asked.append((case["prompt"], params))
            plain: dict[str, Any] = {}
            for method in METHODS:
                found = run_method(target, tokenizer, method, asked)
                outputs = found.pop("outputs")
                ids = [output.outputs[0].token_ids for output in outputs]
                plain = plain or {"ids": ids, **found}
                finished = [index for index, output in enumerate(outputs) if output.outputs[0].finish_reason == "stop"]
                for index in finished:
                    schema = cases(arguments.prompts)[index]["schema"]
                    jsonschema.validate(json.loads(outputs[index].text), schema)
                record = {
                    "whitespace": "one line" if one_line else "free",
                    "temperature": temperature,
                    "method": method,
                    **found,
                    "same_token_ids_as_plain": ids == plain["ids"],
                    "num_finished_and_valid": len(finished),
                    "passes_spared": round(1 - found["num_passes"] / plain["num_passes"], 3),
                }
                if "seconds" in found:
                    rates = [run["decoding_tokens_per_second"] for run in (found, plain)]
                    record["speed_against_plain"] = round(rates[0] / rates[1], 3)
                print(json.dumps(record), file=sys.stderr)
                records.append(record)
    return records


def mask_times(arguments: argparse.Namespace, target: Any, tokenizer: Any) -> dict[str, Any]:
    """Milliseconds a row: making the mask, and the chain with it against the chain without (T = 0.7, no filter)."""
    llm = LLM.from_target(target, tokenizer)
    chain, size = SamplerChain(), target.vocab_size
    logits = torch.from_numpy(np.random.default_rng(1).standard_normal((1, size)).astype(np.float32))
    making, masked, free = [], [], []
    for case in cases(arguments.prompts):
        structured = {"json": case["schema"], "backend": arguments.backend, "disable_any_whitespace": True}
        params = SamplingParams(temperature=0.7, structured_outputs=structured, seed=1, max_tokens=48)
        prompt_ids = llm.encode_chat([{"role": "user", "content": case["prompt"]}])
        cursor = llm.admission.admit("masks", prompt_ids, params)[0].grammar
        row = chain.resolve(params, tokenizer, size, target.eos_token_ids)
        history = History(prompt_ids)
        source = np.random.default_rng(2)
        for _ in range(40):
            began = time.perf_counter()
            mask = cursor.mask
            made = time.perf_counter()
            chain.laws(logits, row, [history], masks=[mask])
            with_mask = time.perf_counter()
            chain.laws(logits, row, [history])
            without = time.perf_counter()
            making.append(1e3 * (made - began))
            masked.append(1e3 * (with_mask - made))
            free.append(1e3 * (without - with_mask))
            following = cursor.committed([int(source.choice(np.flatnonzero(mask)))])
            if following.phase.value == "ended":
                break
            cursor = following
    added = [one + two - three for one, two, three in zip(making, masked, free, strict=True)]
    return {
        "num_rows": len(making),
        "making_the_mask_ms": _spread(making),
        "chain_with_the_mask_ms": _spread(masked),
        "chain_without_ms": _spread(free),
        "added_ms": _spread(added),
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {"median": statistics.median(ordered), "p95": ordered[int(0.95 * (len(ordered) - 1))], "most": ordered[-1]}
    return {name: round(value, 4) for name, value in found.items()}


def table(records: list[dict[str, Any]]) -> str:
    """The records as text."""
    names = ("whitespace", "temperature", "method", "num_tokens", "num_passes", "tokens_per_pass",
             "decoding_tokens_per_second", "speed_against_plain", "same_token_ids_as_plain")  # fmt: skip
    rows = [names, *(tuple(str(record.get(name, "")) for name in names) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", default="xgrammar", choices=("xgrammar", "llguidance"))
    parser.add_argument("--batch", type=int, default=1, help="requests at a time; above 1 no speeds are measured")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    target, tokenizer = target_of("float32", invariant=True, num_slots=arguments.batch)
    masks = mask_times(arguments, target, tokenizer)
    print(json.dumps(masks), file=sys.stderr)
    records = measure(arguments, target, tokenizer)
    print(table(records), file=sys.stderr)
    libraries = {name: version(name) for name in ("xgrammar", "llguidance", "numpy")}
    settings = machine(
        backend=arguments.backend,
        max_tokens=arguments.max_tokens,
        batch=arguments.batch,
        dtype="float32",
        invariant=True,
    )
    print(json.dumps({"benchmark": "json_schema", **settings, **libraries, "masks": masks, "results": records}))


if __name__ == "__main__":
    main()
