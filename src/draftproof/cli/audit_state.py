"""draftproof's own targets in state mode: a slot behind the interface that the audit drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftproof.targets.base import ScoreRequest, Target


class Slots:
    """Hands out the two slots of a target in turn, emptied: a trial holds two sequences at a time."""

    def __init__(self, target: Target) -> None:
        self._target, self._next = target, 0

    def take(self) -> SlotSequence:
        """An empty sequence."""
        slot, self._next = self._next, (self._next + 1) % 2
        self._target.release(slot)
        return SlotSequence(self._target, slot)


class SlotSequence:
    """One slot; `append` scores in pieces as wide as the target takes."""

    def __init__(self, target: Target, slot: int) -> None:
        self._target, self._slot = target, slot
        self.vocab_size = target.vocab_size

    def append(self, token_ids: Sequence[int]) -> Any:
        rows, left = [], list(token_ids)
        while left:
            room = self._target.room(self._slot)
            piece, left = left[:room], left[room:]
            [logits] = self._target.score([ScoreRequest(self._slot, tuple(piece))])
            rows.append(logits.float().cpu().numpy())
        return np.concatenate(rows)

    def rewind(self, num_tokens: int) -> None:
        self._target.rewind(self._slot, num_tokens)

    def state(self) -> Mapping[str, Any]:
        """Recurrent states; keys and values show in the logits."""
        states = getattr(self._target, "recurrent_states", None)
        found: Mapping[str, Any] = {} if states is None else states(self._slot)
        return {name: state.float().cpu().numpy() for name, state in found.items()}
