"""Static targets, and requests that mix chains and trees over filled slots."""

from typing import Any

import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from tests.targets.models import WINDOW, random_ids, tiny_model

IDS = random_ids(700)
LENGTHS = (300, 5, 299)
TREE = (-1, 0, 0, 2, 1, 3, 3)
WIDE_TREE = tuple(max(node - 1 - node % 3, 0) if node else -1 for node in range(40))
CASES = {
    "one token": [ScoreRequest(0, tuple(IDS[:1]))],
    "chains": [
        ScoreRequest(0, tuple(IDS[3:8])),
        ScoreRequest(1, tuple(IDS[9:10])),
        ScoreRequest(2, tuple(IDS[:40])),
    ],
    "trees": [
        ScoreRequest(0, tuple(IDS[3:10]), TREE),
        ScoreRequest(1, tuple(IDS[9:50])),
        ScoreRequest(2, tuple(IDS[:40]), WIDE_TREE),
    ],
}
WINDOWED: dict[str, Any] = {
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def filled(model: Any, *, static: bool, invariant: bool = False, **options: Any) -> HFTarget:
    """A target whose three slots hold LENGTHS tokens."""
    target = HFTarget(model, num_slots=3, static=static, invariant=invariant, **options)
    for slot, length in enumerate(LENGTHS):
        target.prefill(slot, IDS[:length])
    return target


def scored(target: HFTarget, requests: list[ScoreRequest]) -> torch.Tensor:
    """All rows; the slots are as before."""
    rows = torch.cat([row.clone() for row in target.score(requests)])
    for request in requests:
        target.rewind(request.slot, LENGTHS[request.slot])
    return rows


def windowed(name: str = "qwen3") -> Any:
    return tiny_model(name, **WINDOWED)
