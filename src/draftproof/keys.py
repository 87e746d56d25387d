"""What a random draw is named by, and what answers: Purpose, Key and the Noise protocol."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.laws import Number, Weights


class Purpose(IntEnum):
    """Which stream a random number comes from. Streams of different purposes never share a word.

    The numbers are part of the noise layout (`noise.LAYOUT_VERSION`).
    """

    TARGET = 0
    XTC = 1
    DRAFT = 16
    COIN = 17
    RESIDUAL = 18
    BONUS = 19
    MATCH = 20

    @property
    def persists(self) -> bool:
        """True if the stream is a function of the position alone, and is never redrawn."""
        return self < Purpose.DRAFT


class Key(NamedTuple):
    """Names one random draw of a request.

    `position` is absolute, prompt included: for purposes that persist, the position of the token
    that the draw is for; for the others, the position at which the pass starts. `index` is the
    draft's node or the draw's number within the pass.
    """

    purpose: Purpose
    position: int
    index: int = 0  # type: ignore[assignment]  # shadows tuple.index, which a key has no use for


class Noise(Protocol):
    """The only source of randomness: keyed streams in production, an oracle in proofs."""

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        """True with probability min(1, numerator / denominator): u * denominator < numerator, strictly."""
        ...

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[np.int64] | None = None) -> int:
        """A token id, drawn in proportion to `weights` [K]; ids are 0..K-1 unless `token_ids` [K] says otherwise.

        A token of weight zero is never returned. Draws of one key share one field: the same key
        with other weights answers from the same noise.
        """
        ...
