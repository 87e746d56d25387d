"""Short ways to one row's law, for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from draftproof.core import Law
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve


def law_of(
    logits: Sequence[float],
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    preset: str = "vllm",
    dtype: str = "float64",
    eos: Sequence[int] = (),
    bad_word_ids: Sequence[Sequence[int]] | None = None,
    **fields: Any,
) -> Law:
    """The law of one row under SamplingParams(**fields)."""
    row = resolve(SamplingParams(**fields), None, len(logits), eos, bad_word_ids=bad_word_ids)
    kind = torch.float32 if dtype == "float32" else torch.float64
    return SamplerChain(preset, dtype).laws(torch.tensor([logits], dtype=kind), row, [History(prompt, output)])[0]


def probs_of(logits: Sequence[float], **arguments: Any) -> list[float]:
    """[V] probabilities of one row."""
    found: list[float] = np.asarray(law_of(logits, **arguments).at(None, len(logits)), dtype=float).tolist()
    return found


def block(prompt: Sequence[int], output: Sequence[int], drafts: Sequence[int]) -> list[History]:
    """Histories of a verified block's rows: row i has seen drafts 0..i-1."""
    histories = [History(prompt, output)]
    for draft in drafts:
        histories.append(histories[-1].extended((draft,)))
    return histories


def same_bits(left: Law, right: Law) -> bool:
    """Whether two laws are of one kind and have the same ids and the same bits."""
    if type(left) is not type(right):
        return False
    (left_probs, left_ids), (right_probs, right_ids) = left.weights(), right.weights()
    same_ids = left_ids is right_ids if left_ids is None or right_ids is None else np.array_equal(left_ids, right_ids)
    return bool(same_ids) and left_probs.dtype == right_probs.dtype and left_probs.tobytes() == right_probs.tobytes()
