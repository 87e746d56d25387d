"""A drafter's context: which positions of each slot its cache holds, and the target's features for the next ones.

The context ids are the only truth. Entries whose tokens the context doesn't share are dropped; features that the
target doesn't hold (a prefix copied from another slot, a slot that came back after preemption) are made again, by
running the target over the missing tokens. So nothing is ever left out, and `observe` may be skipped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.drafters.base import DraftRequest
from draftproof.errors import ParameterError
from draftproof.targets.base import HiddenStates, TappedTarget


class DraftContext:
    """Per slot: the token ids of the positions that the drafter's cache holds, from position 0 on."""

    def __init__(self, target: TappedTarget, taps: HiddenStates) -> None:
        self.target, self.taps = target, taps
        self._ids: dict[int, list[int]] = {}

    def num_cached(self, slot: int) -> int:
        """How many positions of the slot are in the drafter's cache."""
        return len(self._ids.get(slot, ()))

    def keep_common(self, slot: int, context_ids: Sequence[int], most: int) -> int:
        """Forget entries from the first that differs from the context on, and beyond `most`; how many stay."""
        ids = self._ids.setdefault(slot, [])
        most = min(most, len(ids), len(context_ids))
        expected = list(context_ids[:most])
        if ids[:most] != expected:
            most = next(index for index in range(most) if ids[index] != expected[index])
        del ids[most:]
        return most

    def extend(self, slot: int, token_ids: Sequence[int]) -> None:
        """These tokens' entries are in the drafter's cache now."""
        self._ids.setdefault(slot, []).extend(token_ids)

    def take(self, slot: int, token_ids: Sequence[int]) -> None:
        """The drafter's cache holds these tokens' entries, from position 0 on, and no others."""
        self._ids[slot] = list(token_ids)

    def release(self, slot: int) -> None:
        """Forget the slot."""
        self._ids.pop(slot, None)

    def is_ready(self, request: DraftRequest) -> bool:
        """Has the target read all of the context but its newest token? It has not before the first pass."""
        length = len(request.context_ids)
        return 1 <= length <= self.target.max_model_len and self.target.length(request.slot) >= length - 1

    def features(self, request: DraftRequest, start: int) -> torch.Tensor:
        """[L - 1 - start, taps]: the target's features of the context's positions from `start` to its newest token,
        whose own features don't exist yet. Missing ones are made by running the target again.

        Raises ModelError if another drafter's taps have taken the place of this one's.
        """
        self.taps.check_open()
        slot, stop = request.slot, len(request.context_ids) - 1
        if self.target.length(slot) != stop:
            raise ParameterError(
                "context_ids", f"{stop + 1} tokens", f"one more than the {self.target.length(slot)} in slot {slot}"
            )
        recorded = self.taps.lengths[slot]
        if recorded < stop:
            begin = self.target.reachable(slot, recorded)
            self.target.rewind(slot, begin)
            self.target.prefill(slot, request.context_ids[begin:stop])
        return self.taps.read(slot, start, stop)
