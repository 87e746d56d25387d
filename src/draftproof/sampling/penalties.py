"""Repetition, frequency and presence penalties: tokens that were seen become less likely.

Formula, for a seen token with count c among the counted ones:
    z = z / r if z > 0 else z * r      (repetition r)
    z = z - f * c                      (frequency f)
    z = z - s * [c > 0]                (presence s)
In: logits [V], ids [K] distinct and their counts [K] from the row's own history. Out: the same logits,
changed in place, in their own type; only seen ids are touched.
What is seen and what is counted is the preset's: vLLM's repetition looks at prompt and output, its
frequency and presence at the output alone (a prompt's token has c = 0 there); llama.cpp and mlx look
at one window of the last tokens, prompt included, for all three.
Edge cases: negative logits multiply (T21); a masked token stays at -inf; ids beyond the vocabulary
(padding of the embedding) have no logit and are passed over.
Source: Keskar et al., arXiv 1909.05858, section 4.1; OpenAI's frequency and presence penalties.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.history import History


def seen_in_request(history: History) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """([K] ids in prompt or output, [K] counts in the output): vLLM's and transformers' view."""
    ids, _, output_counts = history.counts()
    return ids, output_counts


def seen_in_window(history: History, window: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """([K] ids, [K] counts) among the last `window` tokens, prompt included; None is all of them."""
    if window is None:
        ids, prompt_counts, output_counts = history.counts()
        return ids, prompt_counts + output_counts
    counter = Counter(history.last(window, prompt=True))
    return np.array(list(counter), dtype=np.int64), np.array(list(counter.values()), dtype=np.int64)


def penalize(
    logits: NDArray[Any],
    token_ids: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    """Penalise `logits` [V] at `token_ids` [K] with `counts` [K], in place."""
    if len(token_ids) and token_ids.max() >= len(logits):
        inside = token_ids < len(logits)
        token_ids, counts = token_ids[inside], counts[inside]
    seen = logits[token_ids]
    if repetition != 1.0:
        seen = np.where(seen > 0, seen / repetition, seen * repetition)
    if frequency != 0.0:
        seen = seen - counts.astype(logits.dtype) * frequency
    if presence != 0.0:
        seen = seen - (counts > 0).astype(logits.dtype) * presence
    logits[token_ids] = seen
