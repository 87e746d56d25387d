"""DRY ("don't repeat yourself"): a token that would extend a repeated sequence is penalised, by the sequence's length.

Formula: among the last N tokens, for each earlier place whose tokens agree with the last L ones (L as long as it gets,
not across a sequence breaker), and the token v that follows there: z[v] -= multiplier * base^(L - allowed) for the
largest such L >= allowed.
In: logits [V], the row's own history (drafts before it included; prompt and output alike). Out: logits, in place.
Edge cases: nothing happens while N <= allowed. A breaker limits L to the tokens after its last occurrence; a breaker
of several tokens counts from its last token; a token that is a breaker by itself is never penalised. L - allowed is
capped where the power would leave float32's range, as in llama.cpp; for a base of 1 every length weighs the same.
Source: P. E. Weidmann, text-generation-webui pull request 5677; llama.cpp's dry sampler, whose Z-algorithm finds the
same lengths; breakers as in KoboldCpp pull request 982.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.sampling.history import History

_LARGEST_LOG: Final = 88.7228391  # of float32

Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""First token of a breaker -> the tokens that follow it, for each breaker that begins so; () for one token."""


@dataclass(frozen=True, slots=True, eq=False)
class Dry:
    """DRY's parameters at token level. last_n: how many last tokens count, None for all."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int | None
    breakers: Breakers

    def penalize(self, logits: NDArray[Any], history: History) -> None:
        """Penalise `logits` [V] in place."""
        ids, lengths = repeats(history.tokens(self.last_n), self.allowed_length, self._limit(history), self._longest())
        for token_id, length in zip(ids.tolist(), lengths.tolist(), strict=True):
            if token_id < len(logits) and () not in self.breakers.get(token_id, ()):
                logits[token_id] -= self.multiplier * self.base ** (length - self.allowed_length)

    def _longest(self) -> int:
        """The length from which on the penalty stays the same."""
        if self.base == 1.0:
            return self.allowed_length
        if self.base <= 1.000001:
            return 1 << 30
        return self.allowed_length + int(_LARGEST_LOG / math.log(self.base))

    def _limit(self, history: History) -> int:
        """How many last tokens come after the last breaker."""
        tokens = history.tokens(self.last_n)
        if not self.breakers:
            return len(tokens)
        heads = np.fromiter(self.breakers, dtype=np.int64, count=len(self.breakers))
        for place in np.flatnonzero(np.isin(tokens, heads))[::-1].tolist():
            after = tokens[place + 1 :]
            found = [
                len(tail)
                for tail in self.breakers[int(tokens[place])]
                if len(tail) <= len(after) and tuple(after[: len(tail)].tolist()) == tail
            ]
            if found:
                return len(after) - max(found)
        return len(tokens)


def repeats(
    tokens: NDArray[np.int64], allowed_length: int, limit: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """([K] distinct ids that would extend a repetition, [K] its length before them, at least allowed_length).

    tokens: [N]. limit: no repetition is longer. longest: lengths are not told apart from there on.
    """
    none = np.empty(0, dtype=np.int64)
    size, most = len(tokens), min(limit, longest)
    if size <= allowed_length or most < allowed_length:
        return none, none
    # ends[i]: a place before the last token where a repetition of `length` tokens ends.
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    found: dict[int, int] = {}
    length = 1
    while len(ends):
        if length >= allowed_length:
            for token_id in tokens[ends + 1].tolist():
                found[token_id] = length
        if length >= most:
            break
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[size - 1 - length]]
        length += 1
    ids = np.array(sorted(found), dtype=np.int64)
    return ids, np.array([found[token_id] for token_id in ids.tolist()], dtype=np.int64)
