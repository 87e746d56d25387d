"""Which shapes a target's forwards have.

`ExactShapes` uses what is needed. `StepShapes` and `FixedShapes` serve invariant execution (`invariant.py`): what a
token reads is a function of its position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.targets.base import ScoreRequest

KEY_STEP = 256
QUERY_STEP = 4


class Shapes(Protocol):
    """How wide a forward is and how many keys it reads.

    margin: columns that a forward may write beyond the model's length. all_slots: does every forward hold every
    slot? query_step: attention's queries are padded to a multiple of it, 0 where bits don't matter. name: for messages.
    """

    name: str
    margin: int
    all_slots: bool
    query_step: int

    def room(self, length: int) -> int:
        """How many tokens one forward may append to a slot that holds `length`."""
        ...

    def split(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> list[list[ScoreRequest]]:
        """Group requests into forwards. `lengths` is by slot."""
        ...

    def forward(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> tuple[int, int]:
        """Width and key length of one group's forward."""
        ...


class ExactShapes:
    """The widest row's width and the longest row's keys."""

    name, all_slots, query_step = "exact shapes", False, 0

    def __init__(self, max_model_len: int) -> None:
        self.max_model_len, self.margin = max_model_len, KEY_STEP

    def room(self, length: int) -> int:
        return self.max_model_len - length

    def split(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> list[list[ScoreRequest]]:
        return [list(requests)]

    def forward(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> tuple[int, int]:
        width = max(len(request.token_ids) for request in requests)
        return width, max(lengths[request.slot] for request in requests) + width


class StepShapes:
    """The rows' own width, and keys in steps of `KEY_STEP`: a token at position n reads the step that holds n."""

    all_slots = False

    def __init__(self, max_model_len: int) -> None:
        self.name, self.query_step = "key steps", QUERY_STEP
        self.max_model_len, self.margin = max_model_len, 2 * KEY_STEP

    def key_length(self, position: int) -> int:
        return KEY_STEP * (position // KEY_STEP + 1)

    def room(self, length: int) -> int:
        return min(self.key_length(length), self.max_model_len) - length

    def split(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> list[list[ScoreRequest]]:
        steps: dict[int, list[ScoreRequest]] = {}
        for request in requests:
            steps.setdefault(self.key_length(lengths[request.slot]), []).append(request)
        return list(steps.values())

    def forward(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> tuple[int, int]:
        width = max(len(request.token_ids) for request in requests)
        return width, self.key_length(lengths[requests[0].slot])


class FixedShapes(StepShapes):
    """As `StepShapes`, with all slots in every forward and one width for all."""

    all_slots = True

    def __init__(self, width: int, num_slots: int, max_model_len: int) -> None:
        super().__init__(max_model_len)
        self.name = f"{num_slots} slots of {width} tokens"
        self.width, self.query_step, self.margin = width, width, 2 * KEY_STEP + width

    def room(self, length: int) -> int:
        return min(self.width, super().room(length))

    def forward(self, requests: Sequence[ScoreRequest], lengths: Sequence[int]) -> tuple[int, int]:
        return self.width, self.key_length(lengths[requests[0].slot])
