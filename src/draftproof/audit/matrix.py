"""A matrix of sampler settings: each parameter by itself, where engines go wrong one by one, and then together.

    audit_scored(engine, scorer, prompts, settings=sampler_matrix())

What an engine refuses is listed as refused; what it ignores is a finding. Draft lengths and concurrency are the
engine's own settings, `batch_size` and `mixed` the audit's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof import SamplingParams


def sampler_matrix(*, token_ids: Sequence[int] = (1, 2, 3), greedy: bool = False) -> dict[str, SamplingParams]:
    """Name -> parameters. token_ids: at least 3, likely ones best, for what biases, bans and stops them. greedy: those
    that act at temperature 0, at that temperature.

    min_tokens is paired with a stop id, so that something is held back whatever the prompt.
    """
    first, second, third = token_ids[:3]
    filters = {
        "temperature 0.5": SamplingParams(temperature=0.5),
        "temperature 1.3": SamplingParams(temperature=1.3),
        "top_k 5": SamplingParams(top_k=5),
        "top_p 0.9": SamplingParams(top_p=0.9),
        "min_p 0.05": SamplingParams(min_p=0.05),
        "temperature 0.7, top_k 50, top_p 0.95": SamplingParams(temperature=0.7, top_k=50, top_p=0.95),
    }
    masks_and_penalties = {
        "repetition_penalty 1.3": SamplingParams(repetition_penalty=1.3),
        "presence_penalty 0.8": SamplingParams(presence_penalty=0.8),
        "frequency_penalty 0.8": SamplingParams(frequency_penalty=0.8),
        "logit_bias": SamplingParams(logit_bias={first: 2.0, second: -2.0}),
        "min_tokens 8 with a stop id": SamplingParams(min_tokens=8, stop_token_ids=[third]),
        "stop_token_ids": SamplingParams(stop_token_ids=[first, third]),
        "penalties, bias and min_tokens": SamplingParams(
            repetition_penalty=1.1, frequency_penalty=0.3, logit_bias={second: 1.0}, min_tokens=4,
            stop_token_ids=[third],
        ),
    }  # fmt: skip
    if greedy:
        found = {name: replace(params, temperature=0.0) for name, params in masks_and_penalties.items()}
        return {"temperature 0": SamplingParams(temperature=0.0), **found}
    return {
        "temperature 1": SamplingParams(),
        **filters,
        **masks_and_penalties,
        "everything": SamplingParams(
            temperature=0.8, top_k=40, top_p=0.95, min_p=0.02, repetition_penalty=1.1, presence_penalty=0.3,
            frequency_penalty=0.3, logit_bias={first: 1.0}, min_tokens=4, stop_token_ids=[third],
        ),
    }  # fmt: skip
