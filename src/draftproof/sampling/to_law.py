"""From weights to a Law, and the check that a row can be one.

Formula: p[i] = weight[i] / sum of weights, in the weights' own type.
In: weights [V], or [K] with their ids. Out: PointMass if one token weighs anything, Sparse if at most an
eighth of the vocabulary does after a mask or filter, Dense otherwise.
Edge cases: a weight that underflowed is probability 0 and leaves the support; NaN, an infinite logit
and a row without tokens are a LawError, never token 0 or V - 1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Dense, Law, PointMass, Sparse
from draftproof.errors import LawError

_SPARSE_SHARE: Final = 8


def finite_max(logits: NDArray[Any], when: str) -> Any:
    """The largest of `logits` [V]. `when`: at which point of the chain, for the error."""
    largest = logits.max()
    if np.isfinite(largest):
        return largest
    if np.isnan(largest):
        reason = "NaN among the logits"
    elif largest > 0:
        reason = "an infinite logit"
    else:
        reason = "every token is masked (-inf)"
    raise LawError(f"{reason} {when}: no law can be made of this row; a row needs a finite largest logit and no NaN")


def law_of_all(weights: NDArray[Any]) -> Law:
    """The law of `weights` [V], of which the largest is 1."""
    total = weights.sum()
    # The largest weight is 1: a total of 1 means that nothing else weighs, or too little to show.
    if total == 1.0 and np.count_nonzero(weights) == 1:
        return PointMass(int(np.argmax(weights)))
    return Dense(weights / total)


def law_of_some(ids: NDArray[np.int64], weights: NDArray[Any], vocab_size: int) -> Law:
    """The law of `weights` [K] at `ids` [K] ascending, of which the largest is 1."""
    if len(ids) > 1 and not weights.all():
        alive = weights > 0
        ids, weights = ids[alive], weights[alive]
    if len(ids) == 1:
        return PointMass(int(ids[0]))
    probs = weights / weights.sum()
    if len(ids) * _SPARSE_SHARE <= vocab_size:
        return Sparse(ids, probs)
    table = np.zeros(vocab_size, dtype=weights.dtype)
    table[ids] = probs
    return Dense(table)
