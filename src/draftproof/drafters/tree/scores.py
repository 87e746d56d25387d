"""What a child is worth: its share of softmax(sharpness * (log q + zeta * G)).

Formula: share(v) in proportion to (q(v) * E(v)^-zeta)^sharpness, since G = -log E. q = the drafter's law after the
parent, G and E the Gumbel and the exponential field of the child's position: those with which `keyed` draws the
target's token there. zeta = 0 is the plain q (EAGLE-2, DDTree), zeta = 1 is right where q is the target's law: the
largest share is then the target's token itself.
Inputs: a law; a position. Outputs: [K] different token ids of the largest shares, largest first, and log shares [K].
Noise: with zeta > 0 the target's field at the position, which persists; nothing is drawn.
Exact because the output can't depend on a tree under the verifiers that accept one which looked (`keyed`).
Edge cases: fewer than K tokens of positive probability: that many. With sharpness other than 1 the tokens beyond the K
best count in the sum as if each were worth what it is at the K-th one's power: shares are a guide, not a law.
Source: ours; docs/trees.md names what is near. Gumbel top-k: Kool et al. 1903.06059.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Law, Noise, PointMass, Purpose, Sparse
from draftproof.drafters.tree.ranked import ranking
from draftproof.drafters.tree.settings import Shares
from draftproof.errors import ParameterError

Ranked = tuple[NDArray[np.int64], NDArray[np.float64]]
"""([K] token ids, [K] logarithms of their shares), the largest first."""
_BLOCK: Final = 64
_FEW: Final = 1024
"""Tokens of a law that are sorted whole."""
_NO_POWERS: Final[NDArray[np.float32]] = np.empty(0, dtype=np.float32)
_NO_ID: Final[NDArray[np.int64]] = np.empty(0, dtype=np.int64)


@runtime_checkable
class Field(Protocol):
    """Noise whose fields can be read, as `KeyedNoise`'s can."""

    def field(self, key: Key, vocab_size: int) -> NDArray[np.uint32]: ...

    def field_at(self, key: Key, token_ids: NDArray[np.int64]) -> NDArray[np.uint32]: ...


class NoiseScores:
    """The shares of one request's candidates; the fields' powers are kept by position.

    noise_weight: zeta, 0 to 3. sharpness: above 0. num_children: K. All but the noise weight may be changed between
    trees.
    """

    def __init__(self, noise: Noise, *, noise_weight: float, num_children: int, sharpness: float = 1.0) -> None:
        if noise_weight > 0 and not isinstance(noise, Field):
            raise ParameterError("noise_weight", noise_weight, "0 for noise whose fields can't be read")
        self.noise: Any = noise
        self.noise_weight, self.sharpness, self.num_children = noise_weight, sharpness, num_children
        self._shares = Shares(noise_weight, sharpness)
        self._powers: dict[int, NDArray[np.float32]] = {}
        # The ids that were asked for last, and the powers of all that ever were; 0 where none is known.
        self._some: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
        self._known: dict[int, NDArray[np.float32]] = {}
        self._last: dict[int, tuple[Law, float, int, Ranked]] = {}
        self._scratch: NDArray[np.float32] = np.empty(0, dtype=np.float32)

    @property
    def shares(self) -> Shares:
        """The settings as they are."""
        known = self._shares
        if known.noise_weight != self.noise_weight or known.sharpness != self.sharpness:
            known = self._shares = Shares(self.noise_weight, self.sharpness)
        return known

    def forget_before(self, position: int) -> None:
        """Drops what is kept for positions that are committed."""
        for kept in (self._powers, self._some, self._known, self._last):
            for old in [known for known in kept if known < position]:
                del kept[old]

    def ranked(self, law: Law, position: int) -> Ranked:
        """The best children after a node whose law is `law`, for a token at `position`.

        Remembered for the last law of each position: a drafter whose slots don't see each other has one for a depth.
        """
        known = self._last.get(position)
        if known is None or known[0] is not law or known[1:3] != (self.sharpness, self.num_children):
            ranked = self._ranked(law, position)
            known = self._last[position] = (law, self.sharpness, self.num_children, ranked)
        return known[3]

    def ranked_together(self, laws: Sequence[Law], position: int) -> list[Ranked]:
        """As `ranked` of each. Laws over one array of few tokens are ranked at once."""
        first = laws[0]
        if len(laws) > 1 and isinstance(first, Sparse) and len(first.token_ids) <= _FEW:
            alike = [law.probs for law in laws if isinstance(law, Sparse) and law.token_ids is first.token_ids]
            if len(alike) == len(laws):
                return self._ranked_rows(np.stack(alike), first.token_ids, position)
        return [self.ranked(law, position) for law in laws]

    def _ranked_rows(self, probs: NDArray[Any], token_ids: NDArray[np.int64], position: int) -> list[Ranked]:
        """probs [n, K] over few token ids [K]."""
        scores = probs * self.powers_at(position, token_ids) if self.noise_weight else probs
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.num_children]
        kept = np.take_along_axis(scores, order, axis=1)
        counts = np.count_nonzero(kept > 0, axis=1).tolist()
        if min(counts) == kept.shape[1]:
            shares = self._log_shares(scores.sum(axis=1), kept)
            return list(zip(token_ids[order], shares, strict=True))
        return [
            (token_ids[row[:count]], self._log_shares(total, some[:count])) if count else (_NO_ID, np.empty(0))
            for row, some, total, count in zip(order, kept, scores.sum(axis=1), counts, strict=True)
        ]

    def _ranked(self, law: Law, position: int) -> Ranked:
        if isinstance(law, PointMass):
            return np.array([law.token_id], dtype=np.int64), np.zeros(1)
        probs, token_ids = law.weights()
        if token_ids is not None and len(token_ids) <= _FEW:
            return self._ranked_rows(probs[None], token_ids, position)[0]
        rank = ranking()
        if rank is not None and probs.dtype == np.float32 and len(probs):
            return self._ranked_at_once(rank, probs, token_ids, position)
        if self.noise_weight == 0:
            scores = probs
        elif token_ids is None:
            self._reserve(len(probs))
            scores = np.multiply(probs, self._power(position, len(probs)), out=self._scratch[: len(probs)])
        else:
            scores = probs * self.powers_at(position, token_ids)
        best = largest(scores, self.num_children)
        best = best[scores[best] > 0]
        if not len(best):
            return _NO_ID, np.empty(0)
        ids = best if token_ids is None else token_ids[best]
        return ids, self._log_shares(scores.sum(), scores[best])

    def _ranked_at_once(
        self, rank: Any, probs: NDArray[Any], token_ids: NDArray[np.int64] | None, position: int
    ) -> Ranked:
        self._reserve(len(probs))
        powers: NDArray[np.float32] = _NO_POWERS
        if self.noise_weight:
            powers = self._power(position, len(probs)) if token_ids is None else self.powers_at(position, token_ids)
        best, order = np.empty(self.num_children), np.empty(self.num_children, dtype=np.int64)
        num = rank(probs, powers, float(self.sharpness), self._scratch, best, order)
        places = order[:num]
        return places if token_ids is None else token_ids[places], best[:num]

    def _reserve(self, size: int) -> None:
        if len(self._scratch) < size:
            self._scratch = np.empty(size, dtype=np.float32)

    def powers_at(self, position: int, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[K] what probabilities at these ids, ascending, are multiplied by. Nodes of one depth ask for one array of
        ids, or for tokens that much the same others have asked for: no noise is computed twice."""
        last = self._some.get(position)
        if last is not None and last[0] is token_ids:
            return last[1]
        known, size = self._known.get(position), int(token_ids[-1]) + 1 if len(token_ids) else 0
        if known is None or len(known) < size:
            longer = np.zeros(size, dtype=np.float32)
            if known is not None:
                longer[: len(known)] = known
            known = self._known[position] = longer
        powers: NDArray[np.float32] = known[token_ids]
        missing = token_ids[powers == 0]
        if len(missing):
            known[missing] = self._raised(self.noise.field_at(Key(Purpose.TARGET, position), missing))
            powers = known[token_ids]
        self._some[position] = (token_ids, powers)
        return powers

    def _log_shares(self, total: Any, kept: NDArray[Any]) -> NDArray[np.float64]:
        """[..., K] for scores `kept` [..., K], above 0 and falling. total [...]: of all scores."""
        kept = kept.astype(np.float64)
        rest = np.maximum(np.asarray(total, dtype=np.float64) - kept.sum(axis=-1), 0.0) / kept[..., 0]
        kept /= kept[..., :1]
        powers = kept**self.sharpness if self.sharpness != 1.0 else kept
        beyond = rest * kept[..., -1] ** (self.sharpness - 1.0)
        shares: NDArray[np.float64] = np.log(powers)
        shares -= np.log(powers.sum(axis=-1) + beyond)[..., None]
        return np.minimum(shares, 0.0, out=shares)

    def _power(self, position: int, size: int) -> NDArray[np.float32]:
        power = self._powers.get(position)
        if power is None or len(power) < size:
            power = self._powers[position] = self._raised(self.noise.field(Key(Purpose.TARGET, position), size))
        return power[:size]

    def _raised(self, words: NDArray[np.uint32]) -> NDArray[np.float32]:
        """E^-zeta of a field's words. A word whose E rounds to infinity or 0 in float32 gets a finite power."""
        power = words.astype(np.float32)
        power += np.float32(0.5)
        power *= np.float32(-(2.0**-32))
        np.maximum(power, np.float32(-1 + 2.0**-24), out=power)
        np.log1p(power, out=power)
        np.negative(power, out=power)
        if self.noise_weight == 1.0:
            return np.reciprocal(power, out=power)
        if self.noise_weight == 0.5:
            return np.reciprocal(np.sqrt(power, out=power), out=power)
        np.log(power, out=power)
        power *= np.float32(-self.noise_weight)
        return np.exp(power, out=power)


def log_shares_of(token_id: int, law: Law, noise: Noise, position: int, arms: Sequence[Shares]) -> NDArray[np.float64]:
    """[arms] the logarithm of the share that each gives `token_id` after a node whose law is `law`, over all tokens.

    -inf where the law leaves it out. The noise is read at `position` if an arm looks at it.
    """
    found = np.full(len(arms), -np.inf)
    if isinstance(law, PointMass):
        found[:] = 0.0 if law.token_id == token_id else -np.inf
        return found
    probs, token_ids = law.weights()
    support = np.flatnonzero(probs)
    ids = support if token_ids is None else token_ids[support]
    place = int(np.searchsorted(ids, token_id))
    if place == len(ids) or ids[place] != token_id:
        return found
    log_probs = np.log(probs[support].astype(np.float32))
    gumbel: Any = np.float32(0.0)
    if any(arm.noise_weight for arm in arms):
        reader: Any = noise
        words = reader.field_at(Key(Purpose.TARGET, position), ids)
        gumbel = np.log(NoiseScores(noise, noise_weight=1.0, num_children=1)._raised(words))
    for index, arm in enumerate(arms):
        scores = np.float32(arm.sharpness) * (log_probs + np.float32(arm.noise_weight) * gumbel)
        scores -= scores.max()
        found[index] = float(scores[place]) - math.log(float(np.exp(scores).sum(dtype=np.float64)))
    return found


def largest(scores: NDArray[Any], num_wanted: int) -> NDArray[np.int64]:
    """Indices of the `num_wanted` largest scores [V], the largest first, the lower index first on ties.

    The maxima of V / _BLOCK parts are known after one pass: the last of the wanted scores is no smaller than the
    `num_wanted`-th largest maximum.
    """
    size = len(scores)
    if size > 16 * _BLOCK and num_wanted < size // _BLOCK:
        num_parts = size // _BLOCK
        maxima = scores[: _BLOCK * num_parts].reshape(_BLOCK, num_parts).max(axis=0)
        edge = np.partition(maxima, num_parts - num_wanted)[num_parts - num_wanted]
        candidates = np.flatnonzero(scores >= edge)
    else:
        candidates = np.arange(size)
    values = scores[candidates]
    if num_wanted < len(candidates):
        edge = np.partition(values, len(values) - num_wanted)[len(values) - num_wanted]
        kept = np.flatnonzero(values >= edge)
        candidates, values = candidates[kept], values[kept]
    found: NDArray[np.int64] = candidates[np.argsort(-values, kind="stable")][:num_wanted]
    return found
