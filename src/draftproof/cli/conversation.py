"""A conversation: its messages, and the rule that keeps its noise fresh.

Noise is keyed by seed and absolute position, and a turn starts behind everything that was said before, so one seed
serves a whole conversation. Where that does not hold (the conversation was reset, or its text takes fewer tokens
when it is read again than when it was written), the next turn takes a fresh seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.noise import fresh_seed


class Conversation:
    """messages: role and content. seed: of the next turn. num_positions: those below it have met this seed's noise."""

    def __init__(self, system: str | None, seed: int | None) -> None:
        self._system = system
        self.messages: list[dict[str, Any]] = self._opening()
        self.seed = fresh_seed() if seed is None else seed
        self.num_positions = 0

    def reset(self) -> None:
        """Forgets what was said. Positions begin again, so the seed is a fresh one."""
        self.messages = self._opening()
        self.seed, self.num_positions = fresh_seed(), 0

    def begin_turn(self, prompt_ids: Sequence[int]) -> bool:
        """Call before a turn that continues `prompt_ids`. True if it had to take a fresh seed."""
        if len(prompt_ids) >= self.num_positions:
            return False
        self.seed, self.num_positions = fresh_seed(), 0
        return True

    def end_turn(self, prompt_ids: Sequence[int], num_emitted: int) -> None:
        """Call after a turn, whether or not its answer is kept. num_emitted: tokens that were shown."""
        self.num_positions = max(self.num_positions, len(prompt_ids) + num_emitted)

    def _opening(self) -> list[dict[str, Any]]:
        return [] if self._system is None else [{"role": "system", "content": self._system}]
