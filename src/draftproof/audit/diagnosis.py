"""Likely causes: the evidence's pattern beside those of the mutants, and chains that leave out or miscount something.

Pattern: the signed strength of each pooled statistic and stratum, z / sqrt(N) for sums, the binned variation for
positions, the correlation for lags, 0 where nothing is seen (p above 0.01). Likeness is the cosine between two
patterns. patterns.json holds the mutants' patterns; benchmarks/audit_patterns.py makes it, with seeds.

Left out: for each parameter that a request sets, the law without it; the e-value of "half of the tokens came from that
law" is the product of (p + p') / 2p. Miscounted: the same for laws whose penalties and min_tokens see another history:
none of the pass's own tokens, or all but the newest one before the pass, where passes are known. A pattern names what
something looks like; it is no proof of the cause.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

import numpy as np

from draftproof import SamplingParams
from draftproof.audit.battery import Hypothesis
from draftproof.audit.engine import Generation, Request
from draftproof.audit.scorer import Scorer
from draftproof.audit.scores import Floats
from draftproof.audit.verdict import Cause

_SEEN: Final = 0.01
_LIKE: Final = 0.8
_STRONG_LOG_E: Final = math.log(1e4)
_NEUTRAL: Final[dict[str, tuple[Any, str]]] = {
    "temperature": (1.0, "temperature not applied to some rows"),
    "top_k": (0, "top_k not applied to some rows"),
    "top_p": (1.0, "top_p not applied to some rows"),
    "min_p": (0.0, "min_p not applied to some rows"),
    "presence_penalty": (0.0, "presence_penalty not applied to some rows"),
    "frequency_penalty": (0.0, "frequency_penalty not applied to some rows"),
    "repetition_penalty": (1.0, "repetition_penalty not applied to some rows"),
    "min_tokens": (0, "min_tokens not applied to some rows"),
    "logit_bias": (None, "logit_bias not applied to some rows"),
    "allowed_token_ids": (None, "allowed_token_ids not applied to some rows"),
}
_PENALTIES: Final = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_FROZEN: Final = "penalty state frozen over the block"


def _frozen(output: Sequence[int], start: int, place: int) -> tuple[int, ...]:
    return tuple(output[:start])


def _without_newest(output: Sequence[int], start: int, place: int) -> tuple[int, ...]:
    return (*output[: max(start - 1, 0)], *output[start:place])


_MISCOUNTED: Final[dict[str, Callable[[Sequence[int], int, int], tuple[int, ...]]]] = {
    _FROZEN: _frozen,
    "the newest token before the block is missing from the penalties' history": _without_newest,
}


def pattern(found: Sequence[Hypothesis]) -> dict[str, float]:
    """Statistic and tokens -> signed strength, without what isn't seen."""
    strengths = {}
    for hypothesis in found:
        if float(hypothesis.p_value) > _SEEN or not hypothesis.num_tokens:
            continue
        z = float(hypothesis.z)
        strengths[hypothesis.name] = z / math.sqrt(hypothesis.num_tokens) if z else float(hypothesis.effect)
    return strengths


def likeness(one: dict[str, float], other: dict[str, float], names: Sequence[str]) -> float:
    """The cosine between two patterns over `names`; 0 where one of them is empty."""
    first = np.array([one.get(name, 0.0) for name in names])
    second = np.array([other.get(name, 0.0) for name in names])
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length else 0.0


@cache
def known_patterns() -> list[dict[str, Any]]:
    """[{name, after, pattern}] of the mutants."""
    text = files("draftproof.audit").joinpath("patterns.json").read_text(encoding="utf-8")
    known: list[dict[str, Any]] = json.loads(text)["patterns"]
    return known


def causes_by_pattern(found: Sequence[Hypothesis], most: int = 3) -> list[Cause]:
    """The mutants whose patterns are most like the evidence's, best first."""
    own = pattern(found)
    names = sorted({hypothesis.name for hypothesis in found})
    ranked = [
        Cause(f"looks like: {known['name']}", likeness(own, known["pattern"], names), known["after"])
        for known in known_patterns()
    ]
    ranked.sort(key=lambda cause: -cause.likeness)
    return [cause for cause in ranked[:most] if cause.likeness >= _LIKE]


def causes_by_parameter(scorer: Scorer, kept: Sequence[tuple[Request, Generation]]) -> list[Cause]:
    """Parameters without which the tokens fit better, by e-value."""
    found = []
    for name, (neutral, words) in _NEUTRAL.items():
        texts = [(r, g) for r, g in kept if getattr(r.params, name) != neutral and g.token_ids]
        log_e = _log_e_without(scorer, texts, name, neutral) if texts else 0.0
        if log_e >= _STRONG_LOG_E:
            found.append(_by_evidence(words, log_e))
    return found


def causes_by_history(scorer: Scorer, kept: Sequence[tuple[Request, Generation]]) -> list[Cause]:
    """Ways to count the output wrongly under which the tokens fit better, by e-value; the best one alone.

    They are like one another: the others would only repeat it. Only outputs whose passes are known are looked at.
    """
    texts = [
        (request, generation, generation.pass_starts)
        for request, generation in kept
        if generation.pass_starts
        and generation.token_ids
        and any(getattr(request.params, name) != _NEUTRAL[name][0] for name in (*_PENALTIES, "min_tokens"))
    ]
    if not texts:
        return []
    requests, outputs = [r for r, _, _ in texts], [g.token_ids for _, g, _ in texts]
    own = scorer.probs(requests, outputs)
    ranked = []
    for words, view in _MISCOUNTED.items():
        seen = [
            [view(output, max(s for s in (0, *starts) if s <= place), place) for place in range(len(output))]
            for output, (_, _, starts) in zip(outputs, texts, strict=True)
        ]
        ranked.append((_log_e(own, scorer.probs(requests, outputs, seen), outputs), words))
    log_e, words = max(ranked)
    if words == _FROZEN and all(getattr(r.params, n) == _NEUTRAL[n][0] for r in requests for n in _PENALTIES):
        words = "min_tokens counted once for a block"
    return [_by_evidence(words, log_e)] if log_e >= _STRONG_LOG_E else []


def _by_evidence(words: str, log_e: float) -> Cause:
    return Cause(words, 1.0 - math.exp(-log_e), f"e-value 10^{log_e / math.log(10):.0f}")


def _log_e_without(scorer: Scorer, texts: Sequence[tuple[Request, Generation]], name: str, neutral: object) -> float:
    requests, outputs = [r for r, _ in texts], [g.token_ids for _, g in texts]
    params: dict[SamplingParams, SamplingParams] = {}
    others = []
    for request in requests:
        changed: dict[str, Any] = {name: neutral}
        without = params.setdefault(request.params, replace(request.params, **changed))
        others.append(replace(request, params=without))
    return _log_e(scorer.probs(requests, outputs), scorer.probs(others, outputs), outputs)


def _log_e(own: Sequence[Floats], others: Sequence[Floats], outputs: Sequence[Sequence[int]]) -> float:
    """Logarithm of the e-value of "half of the tokens came from the other laws"."""
    total = 0.0
    for law, other, output in zip(own, others, outputs, strict=True):
        rows = np.arange(len(output))
        p, p_other = law[rows, list(output)], other[rows, list(output)]
        with np.errstate(divide="ignore"):
            total += float(np.log((p + p_other) / 2).sum() - np.log(np.maximum(p, 1e-12)).sum())
    return total
