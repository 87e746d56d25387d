"""Allowed tokens: every token outside a request's list, or outside a row's mask, is masked.

Formula: z[i] = -inf for every i outside the list and for every i where the mask is False.
In: logits [V]; ids [A] int64 ascending; mask [>= V] bool, True = allowed, of one row alone (grammars).
Out: new logits [V], and the ids that are left.
Edge cases: a list that other masks leave empty is refused by `resolve` (T29); what only the history
can make empty raises LawError at that row, and so does a mask without a True.
Source: vLLM's allowed_token_ids; transformers' prefix_allowed_tokens_fn with a constant list; XGrammar,
arXiv 2411.15100, for masks.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Mask: TypeAlias = NDArray[np.bool_]
"""[V] which tokens a row allows: True = allowed."""


def only_allowed(logits: NDArray[Any], allowed_ids: NDArray[np.int64]) -> NDArray[Any]:
    """`logits` [V] at `allowed_ids` [A], -inf elsewhere, as a new array."""
    masked = np.full_like(logits, -np.inf)
    masked[allowed_ids] = logits[allowed_ids]
    return masked


def open_ids(allowed_ids: NDArray[np.int64] | None, mask: Mask | None) -> NDArray[np.int64] | None:
    """The ids that both the request's list and the row's mask [V] allow, ascending; None if all are."""
    if mask is None:
        return allowed_ids
    if allowed_ids is None:
        return np.flatnonzero(mask).astype(np.int64, copy=False)
    return allowed_ids[mask[allowed_ids]]
