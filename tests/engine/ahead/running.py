"""Engines over a tiny target and block drafters, with steps that run ahead or are waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftproof import SamplingParams
from draftproof.config import SpeculativeConfig
from draftproof.drafters import make_drafter
from draftproof.engine.ahead.loop import AheadLoop
from draftproof.engine.request import Request
from draftproof.targets.hf import HFTarget
from tests.drafters.learned import tiny
from tests.drafters.learned.tiny import config_method, write_drafter
from tests.engine.requests import CHAIN, Bench
from tests.targets.models import random_ids, tiny_model

TOKENS, NUM_LAYERS = 3, 4
CHAINS = {"num_layers": tiny.NUM_LAYERS}
"""Of a target for tiny chain drafters, whose deepest tap is further down."""
PARAMS = [
    SamplingParams(temperature=3.0, seed=1, max_tokens=44, detokenize=False),
    SamplingParams(temperature=0, max_tokens=28, detokenize=False),
    SamplingParams(temperature=4.0, top_p=0.9, seed=2, max_tokens=40, stop_token_ids=[5, 9], detokenize=False),
    SamplingParams(temperature=2.0, top_k=20, min_p=0.01, seed=3, max_tokens=1, detokenize=False),
    SamplingParams(temperature=3.0, seed=2**63 + 5, max_tokens=34, detokenize=False),
]
"""Laws so flat that a random drafter that shares the noise is accepted now and then."""
OTHERS = [
    SamplingParams(temperature=2.0, seed=7, max_tokens=10, detokenize=False, repetition_penalty=1.3),
    SamplingParams(temperature=2.0, seed=8, max_tokens=10, detokenize=False, logprobs=2),
    SamplingParams(temperature=2.0, seed=9, max_tokens=10, detokenize=False, allowed_token_ids=[*range(30)]),
]
"""What the host alone can verify."""
PROMPTS = [random_ids(4 + 5 * index, seed=index) for index in range(5)]


def target_of(
    num_slots: int = 3,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    num_layers: int = NUM_LAYERS,
    **options: Any,
) -> Any:
    model = tiny_model("llama", dtype, num_hidden_layers=num_layers, initializer_range=0.15)
    return HFTarget(model.to(device), num_slots=num_slots, static=True, **options)


def sizes_for(method: str | None) -> dict[str, int]:
    """Options of a target that the drafter can be of."""
    return CHAINS if method in ("eagle3", "mtp") else {}


def bench_of(target: Any, method: str | None, folder: Path, *, ahead: bool, **engine: Any) -> Bench:
    """method None: plain decoding."""
    drafter = None
    if method is not None:
        path = folder / method
        if not path.exists():
            write_drafter(method, path, block_size=TOKENS + 1)
        method = config_method(method)
        config = SpeculativeConfig(method=method, model=str(path), num_speculative_tokens=TOKENS, draft_length="fixed")
        drafter = make_drafter(config, target, None, CHAIN)
    bench = Bench(target=target, drafter=drafter, tokens=TOKENS, async_scheduling=False, **engine)
    if ahead:
        # On a CPU, too, where an engine of its own wouldn't: nothing is won there.
        bench.engine.ahead = AheadLoop(target, drafter, bench.engine.scheduler)
    return bench


def said(bench: Bench, params: list[SamplingParams] = PARAMS) -> list[Request]:
    """All requests together, to their ends."""
    return followed(bench, params)[0]


def followed(bench: Bench, params: list[SamplingParams] = PARAMS) -> tuple[list[Request], list[list[tuple[int, ...]]]]:
    """As `said`; and what each was drafted, pass by pass."""
    requests = [bench.make(PROMPTS[index % len(PROMPTS)], each) for index, each in enumerate(params)]
    for request in requests:
        bench.engine.add_request(request)
    drafts: dict[str, list[tuple[int, ...]]] = {request.request_id: [] for request in requests}
    for turns in bench.run():
        for turn in turns:
            if turn.is_pass:
                drafts[turn.request.request_id].append(turn.draft.token_ids)
    return requests, [*drafts.values()]


def texts(requests: list[Request]) -> list[list[int]]:
    return [[token.token_id for token in request.emitted] for request in requests]


def endings(requests: list[Request]) -> list[Any]:
    return [request.stop if request.error is None else str(request.error) for request in requests]


def drafted(requests: list[Request]) -> list[tuple[list[int], list[int]]]:
    """By pass: how many tokens were drafted, and accepted."""
    return [(request.record.per_step_drafted, request.record.per_step_accepted) for request in requests]
