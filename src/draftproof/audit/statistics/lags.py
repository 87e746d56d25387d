"""Dependence: do positions U repeat, along a request and from one request to the next?

Rule: c_t = sqrt(12) (U_t - 1/2) has mean 0 and variance 1 given the past, so products c_t c_{t+k} sum to a martingale
with variance 1 a term. Along a request: chi-square over the lags 1 to 4. Across requests: the same position of the
request before, one sum. Sees noise that is reused from token to token, pass to pass or request to request.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from draftproof.audit.scores import Floats, TokenScores
from draftproof.audit.statistics.needs import special, stats

LAGS: Final = (1, 2, 3, 4)
FEWEST_PAIRS: Final = 200


def along_request(scores: TokenScores) -> tuple[Floats, Floats]:
    """(correlation of largest size [...], p-values [...]) over the lags within a request."""
    centred = _centred(scores.pit)
    correlations, total, num_used = [], np.zeros(centred.shape[:-1]), 0
    for lag in LAGS:
        same = scores.request[lag:] == scores.request[:-lag]
        num_pairs = int(same.sum())
        if num_pairs < FEWEST_PAIRS:
            continue
        product = np.where(same, centred[..., lag:] * centred[..., :-lag], 0.0).sum(-1)
        correlations.append(product / num_pairs)
        total = total + product**2 / num_pairs
        num_used += 1
    if not num_used:
        return np.zeros(centred.shape[:-1]), np.ones(centred.shape[:-1])
    stacked = np.stack(correlations)
    largest = np.take_along_axis(stacked, np.abs(stacked).argmax(0)[None], 0)[0]
    return largest, stats().chi2.sf(total, num_used)


def across_requests(scores: TokenScores) -> tuple[Floats, Floats]:
    """(correlation [...], p-values [...]) of the same position in consecutive requests."""
    centred = _centred(scores.pit)
    width = int(scores.position.max(initial=0)) + 1
    places = scores.request * width + scores.position
    order = np.argsort(places, kind="stable")
    found = np.searchsorted(places[order], places - width)
    found = np.minimum(found, len(places) - 1)
    before = order[found]
    has_before = (places[before] == places - width) & (scores.request > 0)
    num_pairs = int(has_before.sum())
    if num_pairs < FEWEST_PAIRS:
        return np.zeros(centred.shape[:-1]), np.ones(centred.shape[:-1])
    total = np.where(has_before, centred * centred[..., before], 0.0).sum(-1)
    return total / num_pairs, special().erfc(np.abs(total) / np.sqrt(2 * num_pairs))


def _centred(uniforms: Floats) -> Floats:
    centred: Floats = np.sqrt(12.0) * (uniforms - 0.5)
    return centred
