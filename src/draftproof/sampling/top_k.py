"""Top-k: keep the k largest logits.

Formula: keep i iff z[i] >= the k-th largest of z (ties "kept"), or i among the first k by
(z descending, id ascending) (ties "lowest id").
In: logits [K] in ascending order of id, k >= 1. Out: indices [<= K] ascending.
Ties: "kept" may keep more than k (vLLM, transformers: T31, logits [1, 1, 1, 0] with k = 2 keep 3);
"lowest id" keeps exactly k (llama.cpp, mlx-lm, whose own choice among ties is unspecified).
Edge cases: k >= K keeps all. Compared are logits, which temperature, being monotone, can't reorder.
The k-th largest is found without a sort: the k-th largest of many blocks' maxima is a lower bound,
and the few values above it are partitioned.
Source: Fan et al., arXiv 1805.04833, section 5.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SMALL: Final = 2048


class TopKTies(Enum):
    """What happens to tokens that tie with the k-th."""

    KEPT = "ties at the k-th place are kept"
    LOWEST_ID = "exactly k, the lowest ids among ties"


def top_k(logits: NDArray[Any], k: int, ties: TopKTies) -> NDArray[np.int64]:
    """Indices into `logits` [K] of the tokens that top-k keeps, ascending."""
    if k >= len(logits):
        return np.arange(len(logits), dtype=np.int64)
    found: NDArray[np.int64] = np.flatnonzero(logits >= _lower_bound(logits, k)).astype(np.int64, copy=False)
    values = logits[found]
    kth: Any = np.partition(values, len(values) - k)[len(values) - k]
    if ties is TopKTies.KEPT:
        found = found[values >= kth]
        return found
    above, tied = found[values > kth], found[values == kth]
    return np.sort(np.concatenate([above, tied[: k - len(above)]]))


def _lower_bound(logits: NDArray[Any], k: int) -> Any:
    """A value that at least k of `logits` reach: k disjoint blocks have maxima of that value or more."""
    num_blocks = max(_SMALL // 2, 4 * k)
    num_rows = len(logits) // num_blocks
    if num_rows < 2:
        return np.partition(logits, len(logits) - k)[len(logits) - k]
    maxima = logits[: num_rows * num_blocks].reshape(num_rows, num_blocks).max(axis=0)
    return np.partition(maxima, num_blocks - k)[num_blocks - k]
