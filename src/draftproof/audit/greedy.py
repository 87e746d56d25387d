"""Greedy mode: at temperature 0 every committed token is the maximum of its row, or a near tie.

Rule: gap = largest processed logit of the row less the emitted token's, teacher-forced on the engine's own output. A
gap above 2 e, e the logit error that rounding explains, is a finding. Equality of texts is no rule here: after one
near tie two lossless engines go separate ways, and each is right row by row. Reported: the worst gap, how many rows
are above 2 e, the first place, how many are above 0. Source: the depth test of ds4's project #358 (T60).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftproof import ParameterError, SamplingParams
from draftproof.audit.conduct import breaches
from draftproof.audit.engine import Engine, EngineError, Generate, Generation, Refusal, Request, as_engine
from draftproof.audit.gather import Progress, request_seed
from draftproof.audit.scorer import Scorer, greedy_params
from draftproof.audit.scores import Floats
from draftproof.audit.verdict import Audit, Finding, Plot, decide

_MOST_LISTED = 12


def audit_greedy(
    engine: Engine | Generate,
    scorer: Scorer,
    prompts: Sequence[Sequence[int]],
    *,
    settings: Mapping[str, SamplingParams] | None = None,
    max_tokens: int = 64,
    batch_size: int = 16,
    logit_error: float = 1e-4,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Asks for every prompt under every setting once. settings: at temperature 0; plain greedy if left out.

    logit_error: how far the engine's logits may be from the scorer's by rounding. Raises ParameterError.
    """
    engine = as_engine(engine)
    cells = dict(settings or {"temperature 0": SamplingParams(temperature=0.0)})
    for name, params in cells.items():
        if not params.is_greedy:
            raise ParameterError("temperature", params.temperature, f"0 in greedy mode, in the setting {name!r} too")
    began, findings, gaps, refused, error = time.perf_counter(), [], [], {}, ""
    num_done, kept = 0, None
    try:
        for cell, start in [(cell, start) for cell in cells for start in range(0, len(prompts), batch_size)]:
            if cell in refused:
                continue
            params, batch = cells[cell], prompts[start : start + batch_size]
            asked = replace(params, max_tokens=max_tokens) if params.max_tokens == 16 else params
            requests = [
                Request(tuple(map(int, prompt)), asked, request_seed(seed, start + index))
                for index, prompt in enumerate(batch)
            ]
            try:
                generations = engine.generate(requests)
            except Refusal as refusal:
                refused[cell] = str(refusal)
                continue
            found, rows, first = _take(scorer, requests, generations, cell, 2 * logit_error)
            findings += found
            gaps += rows
            kept = kept or first
            num_done += len(batch)
            if progress is not None:
                progress(num_done, len(prompts) * len(cells))
    except EngineError as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "Ctrl-C"
    every = np.concatenate(gaps) if gaps else np.zeros(0)
    verdict = decide(findings, complete=bool(len(every)) and not error)
    return Audit(
        mode="greedy",
        engine=engine.name,
        verdict=verdict,
        summary=error or f"{len(findings)} findings in {len(every):,} tokens",
        findings=tuple(findings[:_MOST_LISTED]),
        numbers=_numbers(every, 2 * logit_error, num_done, error),
        plots=(_plot(every),) if len(every) else (),
        refused=tuple(refused.items()),
        limits=("anything at temperatures above 0", f"differences that move a logit by less than {2 * logit_error:g}"),
        chain=scorer.chain.describe(),
        reproduction=kept,
        settings={name: repr(params) for name, params in cells.items()},
        seconds=time.perf_counter() - began,
    )


def gaps_of(scorer: Scorer, requests: Sequence[Request], generations: Sequence[Generation]) -> list[Floats]:
    """[n] gap of every committed token to its row's maximum, in processed logits, for each request."""
    free: dict[SamplingParams, SamplingParams] = {}
    asked = [replace(r, params=free.setdefault(r.params, greedy_params(r.params))) for r in requests]
    outputs = [generation.token_ids for generation in generations]
    present = [index for index, output in enumerate(outputs) if output]
    rows = scorer.probs([asked[i] for i in present], [outputs[i] for i in present]) if present else []
    found: list[Floats] = [np.zeros(0) for _ in outputs]
    for index, probs in zip(present, rows, strict=True):
        own = probs[np.arange(len(probs)), list(outputs[index])]
        with np.errstate(divide="ignore"):
            found[index] = np.log(probs.max(-1)) - np.log(own)
    return found


def _take(
    scorer: Scorer, requests: Sequence[Request], generations: Sequence[Generation], cell: str, allowed: float
) -> tuple[list[Finding], list[Floats], str | None]:
    if len(requests) != len(generations):
        raise EngineError(f"{len(generations)} generations came back for {len(requests)} requests")
    findings, kept = [], None
    gaps = gaps_of(scorer, requests, generations)
    for request, generation, row in zip(requests, generations, gaps, strict=True):
        places = np.flatnonzero(row > allowed)
        for breach in breaches(request, generation, scorer.eos_token_ids, scorer.tokenizer):
            findings.append(Finding(breach, cell, 0.0, 1.0, "requests"))
        if len(places):
            first = int(places[0])
            where = (
                f"{cell}, prompt {list(request.prompt_ids)[:8]}…, output position {first}, {len(places)} rows in all"
            )
            findings.append(Finding("a token below its row's maximum", where, 0.0, float(row[places].max()), "logits"))
            kept = kept or _reproduction(request, generation, first)
    return findings, gaps, kept


def _reproduction(request: Request, generation: Generation, first: int) -> str:
    return (
        f"prompt_ids = {list(request.prompt_ids)}\nparams = {request.params!r}\n"
        f"came_back = {list(generation.token_ids)}\nfirst_wrong_position = {first}\n"
    )


def _numbers(every: Floats, allowed: float, num_requests: int, error: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "tokens": len(every),
        "requests": num_requests,
        "worst gap, logits": float(every.max(initial=0.0)),
        "gap allowed for rounding": allowed,
        "rows above it": int((every > allowed).sum()),
        "rows above 0": int((every > 0).sum()),
    }
    return {**numbers, "ended by": error} if error else numbers


def _plot(every: Floats) -> Plot:
    finite = np.sort(np.where(np.isfinite(every), every, 50.0))[::-1][:400]
    return Plot("Gaps, the largest first", "line", "rank", "logits", tuple(range(1, len(finite) + 1)),
                tuple(float(gap) for gap in finite))  # fmt: skip
