"""Evidence that may be looked at after every token: bets whose wealth can't grow under the null hypothesis.

Rule: M = average of wealths, each a product of factors with mean 1 given the past.
- Sets: factor 1 + b (1[x in A] - p(A)) for a grid of bets b of both signs, |b| < 1.
- Positions U in K bins: the ratio of a Dirichlet mixture to the uniform law, at three concentrations; its closed form
  is K^N Gamma(K c) / Gamma(K c + N) * product of Gamma(c + n_k) / Gamma(c).
An average of such wealths is one again, so no correction for several bets is needed. Reject once M >= 1/alpha: by
Ville's inequality this happens with probability at most alpha under the null, however often one looks.
Rounding: a set's probability may be off by `shift`; each factor is lowered by |b| shift, and each bin's by the factor
1 + K shift, so that wealth still can't grow.
Sources: Ville 1939; Waudby-Smith & Ramdas 2024, section 4 (bets); Krichevsky & Trofimov 1981 (mixtures).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from draftproof.audit.scores import Floats, TokenScores
from draftproof.audit.statistics.needs import special
from draftproof.audit.statistics.pit import NUM_BINS, bin_counts

BETS: Final = np.array([sign * size for size in (0.01, 0.03, 0.1, 0.3, 0.9) for sign in (1.0, -1.0)])
CONCENTRATIONS: Final = (3.0, 100.0, 2500.0)


class EProcess:
    """The running wealth of one run, or of several at once.

    knows_draft: whether to bet on the draft's sets too; fixed before the first token. shift: see the module.
    """

    def __init__(self, *, knows_draft: bool, shift: float = 0.0) -> None:
        self.knows_draft, self.shift = knows_draft, shift
        self._log_wealth: dict[str, Floats] = {}
        self._counts: dict[str, Floats] = {}
        self._peak: Floats | None = None

    def update(self, scores: TokenScores) -> None:
        """Plays the tokens of `scores` [..., N], in order, and takes note of the peak after them."""
        if not len(scores):
            return
        self._bet("argmax p", scores.is_top, scores.top_prob)
        self._bet("repeat", scores.is_repeat, scores.repeat_prob)
        self._bet("end", scores.is_end, scores.end_prob)
        self._count("pit", scores.pit)
        self._count("pit by id", scores.id_pit)
        if self.knows_draft and scores.knows_draft:
            self._bet("q > p", scores.is_gain, scores.gain_prob)
            self._bet("argmax q", scores.is_draft_top, scores.draft_top_prob)
            self._count("pit by p/q", scores.ratio_pit)
        now = self.log_e()
        self._peak = now if self._peak is None else np.maximum(self._peak, now)

    def log_e(self) -> Floats:
        """[...] natural logarithm of the wealth now; 0 before the first token."""
        parts = [wealth - np.log(len(BETS)) for wealth in self._log_wealth.values()]
        parts += [self._mixture(counts) - np.log(len(CONCENTRATIONS)) for counts in self._counts.values()]
        if not parts:
            return np.zeros(())
        every = np.concatenate(parts, axis=-1)
        peak = every.max(-1)
        total: Floats = peak + np.log(np.exp(every - peak[..., None]).sum(-1)) - np.log(len(parts))
        return total

    @property
    def peak_log_e(self) -> Floats:
        """[...] the largest value after any update."""
        return np.zeros(()) if self._peak is None else self._peak

    def _bet(self, name: str, is_in: object, probability: object) -> None:
        steps = np.asarray(is_in, dtype=np.float64) - np.clip(np.asarray(probability), 0.0, 1.0)
        gains = np.stack(
            [np.log(np.maximum(1 + bet * steps - abs(bet) * self.shift, 1e-12)).sum(-1) for bet in BETS], -1
        )
        self._log_wealth[name] = self._log_wealth.get(name, 0.0) + gains

    def _count(self, name: str, uniforms: object) -> None:
        self._counts[name] = self._counts.get(name, 0.0) + bin_counts(np.asarray(uniforms), NUM_BINS)

    def _mixture(self, counts: Floats) -> Floats:
        gammaln = special().gammaln
        num_tokens = counts.sum(-1)
        rows = []
        for each in CONCENTRATIONS:
            whole = NUM_BINS * each
            likelihood = (gammaln(each + counts) - gammaln(each)).sum(-1) + gammaln(whole) - gammaln(whole + num_tokens)
            rows.append(likelihood + num_tokens * (np.log(NUM_BINS) - np.log1p(NUM_BINS * self.shift)))
        return np.stack(rows, -1)
