"""Dynamic temperature: the surer the row, the lower its temperature.

Formula: T = low + (high - low) * (H / log K)^exponent, low = max(0, temperature - range), high = temperature + range,
H the entropy at T = 1 of the K tokens that are left where the preset's order has the temperature.
In: scores [K] at T = 1, their weights [K]. Out: the row's temperature, 0 or more.
Edge cases: one token left: the temperature is of no consequence, and `temperature` is returned. T = 0 (range >=
temperature and an entropy of 0) is the point mass at the largest logit. Masked tokens are not counted in K; llama.cpp
counts those that a logit_bias of -inf or top_n_sigma masked.
Source: llama.cpp's temp-ext sampler (dynatemp_range, dynatemp_exponent).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.entropy import entropy_of


def dynamic_temperature(
    scores: NDArray[Any], weights: NDArray[Any], temperature: float, width: float, exponent: float
) -> float:
    """The row's temperature. width: dynatemp_range."""
    num_left = int(np.count_nonzero(scores != -np.inf))
    if num_left <= 1:
        return temperature
    low, high = max(0.0, temperature - width), temperature + width
    # Rounding may put the entropy of a uniform row above its maximum.
    share = min(entropy_of(scores, weights) / math.log(num_left), 1.0)
    return low + (high - low) * float(share**exponent)
