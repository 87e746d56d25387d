"""Allowed tokens: every token outside the list is masked.

Formula: z[i] = -inf for every i outside the list.
In: logits [V], ids [A] int64 ascending. Out: new logits [V].
Edge cases: a list that other masks leave empty is refused by `resolve` (T29); what only the history
can make empty raises LawError at that row.
Source: vLLM's allowed_token_ids; transformers' prefix_allowed_tokens_fn with a constant list.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def only_allowed(logits: NDArray[Any], allowed_ids: NDArray[np.int64]) -> NDArray[Any]:
    """`logits` [V] at `allowed_ids` [A], -inf elsewhere, as a new array."""
    masked = np.full_like(logits, -np.inf)
    masked[allowed_ids] = logits[allowed_ids]
    return masked
