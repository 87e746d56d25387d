"""Engines that the command line's tests name as module:function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof import SamplingParams
from draftproof.audit.engine import EngineError

_CALLS = [0]


def first_letters(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
    """Uniform over eight tokens of the vocabulary: no sample of any target's law."""
    return [int(i) for i in np.random.default_rng(seed).integers(4, 12, params.max_tokens or 16)]


def fails(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
    raise EngineError("out of order")


def interrupted_once(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
    """Ctrl-C at the 20th request of the process."""
    _CALLS[0] += 1
    if _CALLS[0] == 20:
        raise KeyboardInterrupt
    return [int(i) for i in np.random.default_rng(seed).integers(4, 260, params.max_tokens or 16)]
