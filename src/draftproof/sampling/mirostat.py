"""Mirostat: cut the row so that the surprise of the emitted tokens stays near tau, by feedback.

Formula: mu starts at 2 * tau; after a token of probability p in the row's own, cut law: mu -= eta * (-log2 p - tau).
v2: keep the tokens with -log2 p <= mu, at least the most probable one.
v1: s = (sum of t*b) / (sum of t*t) over i = 1 .. min(m, K) - 1, t = log((i+1)/i), b = log(p[i] / p[i+1]), p descending,
m = 100; k = ((s - 1) * 2^mu / (1 - V^(1 - s)))^(1/s), rounded down, at least 1; keep the k most probable.
In: scores [K] <= 0, their weights [K], the state. Out: indices [<= K] ascending.
The state (mu) advances by committed tokens only and is forked along a draft; see state.py.
Edge cases: ties go by id, as in a stable sort. v1: where the formula gives no number (s = 0: the m most probable are
equal; s = 1: its limit is 2^mu / log V), k is that limit, or all; a k above V is all. Computed in float64, where
llama.cpp has float32. Tokens of weight 0 are dropped first.
Source: Basu et al., arXiv 2007.14966, algorithms 1 and 2; llama.cpp's mirostat samplers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Law
from draftproof.errors import LawError
from draftproof.sampling.entropy import surprises

_NUM_FITTED: Final = 100


@final
@dataclass(frozen=True, slots=True)
class Mirostat:
    """The state. version: 1 or 2. tau: bits. mu: the current limit, in bits."""

    version: int
    tau: float
    eta: float
    mu: float
    needs_law: ClassVar[bool] = True

    @classmethod
    def begin(cls, version: int, tau: float, eta: float) -> Mirostat:
        """The state before the first token."""
        return cls(version, tau, eta, 2.0 * tau)

    def after(self, token_id: int, law: Law | None) -> Self:
        """mu moved by the surprise of `token_id` in `law`."""
        prob = 0.0 if law is None else float(law.prob(token_id))
        if not 0.0 < prob < math.inf:
            raise LawError(f"mirostat: token {token_id} has no probability in its row's law; its state can't advance")
        error = -math.log2(prob) - self.tau
        return type(self)(self.version, self.tau, self.eta, self.mu - self.eta * error)

    def keeps(self, scores: NDArray[Any], weights: NDArray[Any], vocab_size: int) -> NDArray[np.int64]:
        """Indices into `scores` [K] of the tokens that stay, ascending."""
        surprise, _ = surprises(scores, weights)
        alive = np.flatnonzero(weights > 0)
        order = alive[np.argsort(-weights[alive], kind="stable")]
        bits = surprise[order] / math.log(2.0)
        if self.version == 2:
            num_kept = int(np.searchsorted(bits, self.mu, "right"))
        else:
            num_kept = self._num_kept(bits, vocab_size)
        return np.sort(order[: max(num_kept, 1)])

    def _num_kept(self, bits: NDArray[np.float64], vocab_size: int) -> int:
        """v1's k. bits: [K] surprises, ascending."""
        num_steps = min(_NUM_FITTED, len(bits)) - 1
        if num_steps < 1:
            return 1
        places = np.arange(1, num_steps + 1, dtype=np.float64)
        steps = np.log((places + 1.0) / places)
        drops = (bits[1 : num_steps + 1] - bits[:num_steps]) * math.log(2.0)
        exponent = float((steps * drops).sum()) / float((steps * steps).sum())
        log_size = self._log_size(exponent, vocab_size)
        return len(bits) if log_size >= math.log(len(bits) + 1.0) else int(math.exp(log_size))

    def _log_size(self, exponent: float, vocab_size: int) -> float:
        """log k, in logarithms since 2^mu and V^(1 - s) leave the range of floats."""
        log_two_mu = self.mu * math.log(2.0)
        if exponent <= 0.0 or vocab_size < 2:
            return math.inf
        excess = exponent - 1.0
        log_vocab = math.log(vocab_size)
        if abs(excess) * log_vocab < 1e-12:
            return (log_two_mu - math.log(log_vocab)) / exponent
        # log of excess / (1 - V^-excess), which is positive on both sides of 0.
        shrunk = -excess * log_vocab
        if shrunk > 700.0:
            ratio = math.log(-excess) - shrunk
        else:
            ratio = math.log(excess / -math.expm1(shrunk))
        return (log_two_mu + ratio) / exponent
