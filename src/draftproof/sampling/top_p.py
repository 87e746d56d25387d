"""Top-p: keep the most probable tokens until their mass reaches top_p.

Formula: in the order (p descending, ties by id), keep a token iff the mass before it is below top_p.
In: weights [K] in ascending order of id, not normalised, and their total. Out: indices [<= K] ascending.
Ties at the edge go by id: ascending, or descending ("highest id"), which is what an ascending stable
sort with a cut at its low end does (transformers, mlx-lm).
Edge cases: at least one token is kept; top_p = 1 never comes here and keeps all (T31). "Reaches" is
decided in float64 on the weights as they are, so that rounding is one of the weights' type alone.
The set does not depend on how many candidates were sorted: masses are cumulated one by one from the
top, and every candidate set is made of the largest weights.
Source: Holtzman et al., arXiv 1904.09751, section 3.1.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SMALL: Final = 256
_FEW: Final = 32
_LEVELS: Final = (2.0**-11, 2.0**-15, 2.0**-19)


class TopPTies(Enum):
    """In which order tokens of equal probability are kept."""

    LOWEST_ID = "ties by ascending id"
    HIGHEST_ID = "ties by descending id"


def top_p(weights: NDArray[Any], total: float, mass: float, ties: TopPTies) -> NDArray[np.int64]:
    """Indices into `weights` [K] of the tokens that top-p keeps, ascending. mass: top_p, in (0, 1)."""
    needed = mass * total
    levels = _LEVELS if len(weights) > _SMALL else ()
    for level in levels:
        candidates = np.flatnonzero(weights >= level * total).astype(np.int64, copy=False)
        # A shortfall of less than rounding sends the search to the next level, where it is settled.
        if len(candidates) and float(weights[candidates].sum(dtype=np.float64)) >= needed:
            kept = _prefix(weights[candidates], needed, ties)
            if kept is not None:
                return candidates[kept]
    kept = _prefix(weights, needed, ties)
    return np.arange(len(weights), dtype=np.int64) if kept is None else kept


def _prefix(weights: NDArray[Any], needed: float, ties: TopPTies) -> NDArray[np.int64] | None:
    """Ascending indices of the shortest prefix whose mass is `needed`; None if all of it is too little."""
    if len(weights) <= _FEW:
        return _prefix_of_few(weights.tolist(), needed, ties)
    order = _by_weight(weights, ties)
    cumulated = np.cumsum(weights[order], dtype=np.float64)
    if cumulated[-1] < needed:
        return None
    return np.sort(order[: int(np.searchsorted(cumulated, needed)) + 1])


def _prefix_of_few(weights: list[float], needed: float, ties: TopPTies) -> NDArray[np.int64] | None:
    """`_prefix` without arrays, which take longer to make than a few tokens to sort; the sums are the same."""
    sign = 1 if ties is TopPTies.LOWEST_ID else -1
    order = sorted(range(len(weights)), key=lambda index: (-weights[index], sign * index))
    mass = 0.0
    for num_kept, index in enumerate(order, 1):
        mass += weights[index]
        if mass >= needed:
            return np.array(sorted(order[:num_kept]), dtype=np.int64)
    return None


def _by_weight(weights: NDArray[Any], ties: TopPTies) -> NDArray[np.int64]:
    """[K] indices by weight descending, ties by index ascending or descending."""
    size = len(weights)
    if weights.dtype == np.float32:
        # Non-negative floats are ordered as their bits are, so one unsigned key holds weight and index.
        index = np.arange(size, dtype=np.uint64)
        low = index if ties is TopPTies.LOWEST_ID else np.uint64(size - 1) - index
        keys = ((~weights.view(np.uint32)).astype(np.uint64) << np.uint64(32)) | low
        order = (np.sort(keys) & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return order if ties is TopPTies.LOWEST_ID else size - 1 - order
    if ties is TopPTies.LOWEST_ID:
        return np.argsort(-weights, kind="stable")
    return np.argsort(weights, kind="stable")[::-1]
