"""No repeated n-grams: a token that would complete an n-gram that the row has seen is masked.

Formula: with the last n - 1 tokens s, z[v] = -inf for every v that follows an earlier occurrence of s.
In: the row's own history, drafts before it included, prompt and output alike; n >= 1. Out: ids to mask.
Edge cases: n = 1 masks every token seen; a history shorter than n masks nothing. What leaves no token is an error of
that row.
Source: Paulus et al., arXiv 1705.04304, section 2.5; transformers' NoRepeatNGramLogitsProcessor, which looks at the
prompt of a decoder-only model too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.history import History


def repeating_ids(history: History, size: int) -> NDArray[np.int64]:
    """Ids that would complete an n-gram of `size` tokens a second time; not distinct."""
    tokens = history.tokens()
    num_windows = len(tokens) - size + 1
    if num_windows < 1:
        return np.empty(0, dtype=np.int64)
    prefix = tokens[len(tokens) - size + 1 :]
    matches = np.ones(num_windows, dtype=np.bool_)
    for offset in range(size - 1):
        matches &= tokens[offset : offset + num_windows] == prefix[offset]
    return tokens[size - 1 :][matches]
