"""Plain speed against transformers, what chain, noise and verification cost, and what speculation brings."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.first.common import chat_ids, embedded_model, engine, machine, prompts, say, target_of, timed_tokens
from benchmarks.first.matrix import FILTERS
from draftproof import SamplingParams
from draftproof.core import Draft
from draftproof.noise import KeyedNoise
from draftproof.sampling import History, laws_along
from draftproof.targets.base import ScoreRequest
from draftproof.verify import get_verifier


def plain_speed(*, dtype: str, num_tokens: int = 64, repeats: int = 5) -> dict[str, Any]:
    """Our plain decoding (not invariant) over transformers' generate, sampled, alternating in one run."""
    target, tokenizer = target_of(dtype, invariant=False)
    llm = engine(target, tokenizer, None)
    theirs = embedded_model(target)
    prompt_ids = chat_ids(llm, prompts("ordinary")[0])
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=num_tokens, ignore_eos=True)
    ids = torch.tensor([prompt_ids])

    def ours_once() -> None:
        llm.generate([prompt_ids], params)

    def theirs_once() -> None:
        theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=0.7,
            top_k=0,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
        )

    times = _alternate({"ours": ours_once, "transformers": theirs_once}, repeats)
    rates = {name: num_tokens / statistics.median(seconds) for name, seconds in times.items()}
    ratio = rates["ours"] / rates["transformers"]
    return {
        "machine": machine(dtype=dtype, num_tokens=num_tokens, repeats=repeats),
        "tokens_per_second": rates,
        "ratio": ratio,
        "bar": 0.95,
        "holds": ratio >= 0.95,
    }


def overhead(*, dtype: str, repeats: int = 30) -> dict[str, Any]:
    """Chain, noise and verification of 9 rows as a share of the whole step, the target's forward included.

    The settings take turns within each repeat, so that a load on the machine meets all of them.
    """
    target, tokenizer = target_of(dtype, invariant=False)
    llm = engine(target, tokenizer, None)
    context = chat_ids(llm, prompts("copy_heavy")[0])
    target.prefill(0, context[:-1])
    length, verifier = target.length(0), get_verifier("keyed")
    draft_ids = [int(token_id) for token_id in context[20:28]]
    parents = range(-1, len(draft_ids) - 1)
    resolved = {
        name: llm.chain.resolve(
            SamplingParams(temperature=0.7, seed=1, **filters), tokenizer, target.vocab_size, target.eos_token_ids
        )
        for name, filters in FILTERS.items()
    }
    # A request keeps its history from step to step; a step extends it by the draft.
    history = History(context)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in FILTERS}
    for repeat in range(repeats + 3):
        for name, row_params in resolved.items():
            began = time.perf_counter()
            logits = target.score([ScoreRequest(0, (context[-1], *draft_ids))])[0]
            scored = time.perf_counter()
            laws = laws_along(llm.chain, logits, row_params, history, draft_ids, parents)
            # Every row is drawn, accepted or not: the most that a step can cost.
            draft = Draft.of_token_ids(len(context), draft_ids)
            verifier.verify(draft, laws, KeyedNoise(repeat), telemetry=True)
            done = time.perf_counter()
            target.rewind(0, length)
            if repeat >= 3:
                seconds[name].append((scored - began, done - scored))
    shares = {}
    for name, pairs in seconds.items():
        forward, spent = (statistics.median(column) for column in zip(*pairs, strict=True))
        shares[name] = {
            "share": spent / (forward + spent),
            "ms": spent * 1e3,
            "forward_ms": forward * 1e3,
            "bar": 0.15 if name in ("no filter", "repetition 1.3, presence .5") else 0.06,
        }
    return {
        "machine": machine(dtype=dtype, rows=9, repeats=repeats),
        "settings": shares,
        "holds": all(entry["share"] <= entry["bar"] for entry in shares.values()),
    }


PAYS = {
    f"{name} T={temperature}": (name, temperature, bar)
    for name, bars in (("copy_heavy", (1.8, 1.4)), ("ordinary", (0.9, 0.9)))
    for temperature, bar in zip((0.0, 0.7), bars, strict=True)
}


def pays(
    *, dtype: str, invariant: bool, max_tokens: int = 128, repeats: int = 2, names: Sequence[str] = tuple(PAYS)
) -> dict[str, Any]:
    """Tokens per second of speculation over plain decoding, alternating in one run.

    Copy-heavy prompts are pooled, and the better one of two drafters counts; of ordinary ones the lowest ratio.
    """
    target, tokenizer = target_of(dtype, invariant=invariant)
    plain = engine(target, tokenizer, None)
    results: dict[str, Any] = {"machine": machine(dtype=dtype, invariant=invariant, max_tokens=max_tokens)}
    for key in names:
        name, temperature, bar = PAYS[key]
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=max_tokens)
        entries = {
            method: _pooled(plain, engine(target, tokenizer, method, num_speculative_tokens=12), params, repeats, name)
            for method in (("ngram", "suffix") if name == "copy_heavy" else ("ngram",))
        }
        if name == "copy_heavy":
            reached = max(entry["ratio"] for entry in entries.values())
        else:
            reached = min(entries["ngram"]["by_prompt"])
        results[key] = {"methods": entries, "reached": reached, "bar": bar, "holds": reached >= bar}
    results["holds"] = all(entry["holds"] for entry in results.values() if "holds" in entry)
    return results


def _pooled(plain: Any, llm: Any, params: SamplingParams, repeats: int, name: str) -> dict[str, Any]:
    """Totals over all prompts of the least time of each prompt; outputs must be equal for times to be compared."""
    seconds = {"plain": 0.0, "speculative": 0.0}
    num_tokens = num_passes = num_different = 0
    by_prompt = []
    for text in prompts(name):
        prompt_ids = chat_ids(plain, text)
        say(f"{name} T={params.temperature} {text[:40]!r}")
        runs: dict[str, list[float]] = {"plain": [], "speculative": []}
        for _ in range(repeats):
            count, took, first = timed_tokens(plain, prompt_ids, params)
            runs["plain"].append(took / count)
            count, took, second = timed_tokens(llm, prompt_ids, params)
            runs["speculative"].append(took / count)
        least = {kind: min(times) for kind, times in runs.items()}
        by_prompt.append(least["plain"] / least["speculative"])
        for kind in seconds:
            seconds[kind] += least[kind] * count
        num_tokens += count
        num_passes += second.metrics.num_passes
        num_different += first.outputs[0].token_ids != second.outputs[0].token_ids
    return {
        "ratio": seconds["plain"] / seconds["speculative"],
        "tokens_per_pass": num_tokens / num_passes,
        "tokens_per_second": {kind: num_tokens / total for kind, total in seconds.items()},
        "by_prompt": by_prompt,
        "num_different": num_different,
    }


def _alternate(calls: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if repeat:
                times[name].append(time.perf_counter() - began)
    return times
