"""Logit bias: add a constant to the logits of chosen tokens.

Formula: z[i] += bias[i]; -inf bans token i.
In: logits [V], ids [B] int64 distinct, biases [B] float64. Out: the same logits, changed in place.
Edge cases: a bias is rounded to the logits' type once; -inf stays -inf whatever is added later.
Source: OpenAI's and vLLM's logit_bias; transformers' sequence_bias for sequences of length 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def add_bias(logits: NDArray[Any], token_ids: NDArray[np.int64], biases: NDArray[np.float64]) -> None:
    """Add `biases` [B] to `logits` [V] at `token_ids` [B], in place."""
    logits[token_ids] += biases.astype(logits.dtype)
