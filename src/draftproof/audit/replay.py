"""Replay mode: an engine that promises the same stream under the same seed is asked twice, or two ways.

Rule: both outputs are equal token by token. At the first difference of a pair the engines' scores are compared: if
both tokens' perturbed scores, log p + G with the position's noise G (0 at temperature 0), are within 2 e of each
other, e the logit error that rounding explains divided by the temperature, it is a near tie and is counted apart.
What follows the first difference is another text, and is not compared. Without a scorer or the noise no difference is
excused. Source: T60; the margin rule of token-DiFR (2511.20621) with the engine's own noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from draftproof import ParameterError, SamplingParams
from draftproof.audit.engine import Engine, EngineError, Generate, Refusal, Request, as_engine
from draftproof.audit.gather import Progress, request_seed
from draftproof.audit.scorer import Scorer, greedy_params
from draftproof.audit.scores import Floats
from draftproof.audit.verdict import Audit, Finding, decide

NoiseOf: TypeAlias = Callable[[int, int, int], Floats]
"""(seed, absolute position, vocabulary size) -> [V] Gumbel values that the engine adds to log p there."""
_MOST_LISTED = 12


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a pair. margin: between the two tokens' perturbed scores, None if it can't be known."""

    request: Request
    position: int
    token_ids: tuple[int | None, int | None]
    margin: float | None


def audit_replay(
    first: Engine | Generate,
    second: Engine | Generate,
    prompts: Sequence[Sequence[int]],
    *,
    settings: Mapping[str, SamplingParams] | None = None,
    scorer: Scorer | None = None,
    noise_of: NoiseOf | None = None,
    logit_error: float = 0.0,
    num_seeds: int = 4,
    max_tokens: int = 64,
    batch_size: int = 16,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Asks both engines for the same requests, `num_seeds` of each prompt under each setting, and compares.

    second: the same engine for a plain repetition. Raises ParameterError.
    """
    first, second = as_engine(first), as_engine(second)
    if num_seeds < 1 or logit_error < 0:
        raise ParameterError("num_seeds, logit_error", (num_seeds, logit_error), "1 or more, and 0 or more")
    cells = dict(settings or {"temperature 1": SamplingParams()})
    began, error, refused = time.perf_counter(), "", {}
    found: list[tuple[str, Difference]] = []
    num_tokens = num_pairs = 0
    num_all = len(cells) * len(prompts) * num_seeds
    try:
        for cell, params in cells.items():
            asked = replace(params, max_tokens=max_tokens) if params.max_tokens == 16 else params
            every = [
                Request(tuple(map(int, prompt)), asked, request_seed(seed, index * num_seeds + sample))
                for index, prompt in enumerate(prompts)
                for sample in range(num_seeds)
            ]
            for start in range(0, len(every), batch_size):
                requests = every[start : start + batch_size]
                try:
                    pairs = zip(first.generate(requests), second.generate(requests), strict=True)
                except Refusal as refusal:
                    refused[cell] = str(refusal)
                    break
                for request, (one, other) in zip(requests, pairs, strict=True):
                    difference = compare(request, one.token_ids, other.token_ids, scorer, noise_of)
                    num_tokens += len(one.token_ids) if difference is None else difference.position
                    num_pairs += 1
                    if difference is not None:
                        found.append((cell, difference))
                if progress is not None:
                    progress(num_pairs, num_all)
    except EngineError as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "Ctrl-C"
    return _audit(first, second, found, num_tokens, num_pairs, logit_error, cells, refused, error, began, scorer)


def compare(
    request: Request,
    one: Sequence[int],
    other: Sequence[int],
    scorer: Scorer | None = None,
    noise_of: NoiseOf | None = None,
) -> Difference | None:
    """The first difference of two outputs of one request, None if they are equal."""
    if tuple(one) == tuple(other):
        return None
    position = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    tokens = (one[position] if position < len(one) else None, other[position] if position < len(other) else None)
    return Difference(request, position, tokens, _margin(request, one[:position], tokens, scorer, noise_of))


def _margin(
    request: Request,
    before: Sequence[int],
    tokens: tuple[int | None, int | None],
    scorer: Scorer | None,
    noise_of: NoiseOf | None,
) -> float | None:
    if scorer is None or None in tokens or (noise_of is None and not request.params.is_greedy):
        return None
    params = greedy_params(request.params) if request.params.is_greedy else request.params
    [probs] = scorer.probs([replace(request, params=params)], [(*before, tokens[0] or 0)])
    with np.errstate(divide="ignore"):
        scores = np.log(probs[-1])
    if noise_of is not None and not request.params.is_greedy:
        scores = scores + noise_of(request.seed, len(request.prompt_ids) + len(before), len(scores))
    one, other = (float(scores[token]) for token in tokens if token is not None)
    return abs(one - other) if np.isfinite(one) and np.isfinite(other) else float("inf")


def is_near_tie(difference: Difference, logit_error: float) -> bool:
    """Whether rounding explains it."""
    temperature = difference.request.params.temperature or 1.0
    return difference.margin is not None and difference.margin <= 2 * logit_error / temperature


def _audit(
    first: Engine,
    second: Engine,
    found: Sequence[tuple[str, Difference]],
    num_tokens: int,
    num_pairs: int,
    logit_error: float,
    cells: Mapping[str, SamplingParams],
    refused: Mapping[str, str],
    error: str,
    began: float,
    scorer: Scorer | None,
) -> Audit:
    ties = [difference for _, difference in found if is_near_tie(difference, logit_error)]
    real = [(cell, difference) for cell, difference in found if not is_near_tie(difference, logit_error)]
    findings = [
        Finding(
            "another token under the same seed",
            f"{cell}, seed {d.request.seed}, output position {d.position}: {d.token_ids[0]} and {d.token_ids[1]}",
            0.0,
            float("nan") if d.margin is None else d.margin,
            "margin of the perturbed scores",
        )
        for cell, d in real
    ]
    return Audit(
        mode="replay",
        engine=first.name if first is second else f"{first.name} against {second.name}",
        verdict=decide(findings, complete=num_pairs > 0 and not error),
        summary=error or f"{len(real)} of {num_pairs} pairs differ, {len(ties)} more by near ties",
        findings=tuple(findings[:_MOST_LISTED]),
        numbers={
            "pairs": num_pairs,
            "tokens compared": num_tokens,
            "pairs that differ": len(real),
            "pairs that differ by a near tie": len(ties),
            "differences per token": len(found) / max(num_tokens, 1),
            "logit error allowed for rounding": logit_error,
            **({"ended by": error} if error else {}),
        },
        refused=tuple(refused.items()),
        limits=("whether the stream that repeats has the target's law: scored mode says that",),
        chain=scorer.chain.describe() if scorer is not None else None,
        reproduction=_reproduction(real[0][1]) if real else None,
        settings={name: repr(params) for name, params in cells.items()},
        seconds=time.perf_counter() - began,
    )


def _reproduction(difference: Difference) -> str:
    request = difference.request
    return (
        f"prompt_ids = {list(request.prompt_ids)}\nparams = {request.params!r}\nseed = {request.seed}\n"
        f"differs_at = {difference.position}  # tokens {difference.token_ids[0]} and {difference.token_ids[1]}\n"
    )
