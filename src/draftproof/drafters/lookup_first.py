"""Another drafter's drafts, save where the text repeats itself: there a lookup is followed, which costs nothing.

Rule: where the longest suffix of the context that occurred before has `min_match_length` tokens or more, the draft is
what the suffix drafter proposes there; elsewhere it is the other drafter's.
Inputs and output: as `Drafter.propose`. Noise: the other drafter's own; a lookup uses none.
Why exact: which of the two is asked depends on the context alone, so the law of every drafted token is still stated
before any noise of its pass is looked at: a point mass, or the other drafter's law.
Edge cases: a drafter that follows the target's hidden states is not asked for some passes, and takes in what it missed
the next time.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Verdict
from draftproof.drafters.acceptance import LOOKUP_CLASS
from draftproof.drafters.base import Drafter, DraftRequest
from draftproof.drafters.suffix import SuffixDrafter


class LookupFirst:
    """drafter: asked where nothing is looked up. min_match_length: of a repeated suffix, in tokens."""

    def __init__(self, drafter: Drafter, min_match_length: int) -> None:
        self.drafter = drafter
        # Longer suffixes than the shortest that counts tell apart what followed in different places.
        self.lookup = SuffixDrafter(min_match_length, max(2 * min_match_length, min_match_length + 16))
        self.method = drafter.method

    @property
    def proposes_without_confidence(self) -> bool:
        """As the other drafter."""
        return self.drafter.proposes_without_confidence

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request; see `Drafter.propose`."""
        drafts = {index: draft for index, draft in enumerate(self.lookup.propose(requests)) if len(draft)}
        others = [index for index in range(len(requests)) if index not in drafts]
        asked = self.drafter.propose([requests[index] for index in others]) if others else []
        drafts.update(zip(others, asked, strict=True))
        return [drafts[index] for index in range(len(requests))]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Both take note."""
        self.lookup.observe(slot, context_ids, verdict)
        self.drafter.observe(slot, context_ids, verdict)

    def release(self, slot: int) -> None:
        """Both forget the slot."""
        self.lookup.release(slot)
        self.drafter.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """The lookup's class of matches, apart from whatever the other drafter says."""
        looked_up = self.lookup.confidence(slot, context_ids)
        return LOOKUP_CLASS + looked_up if looked_up is not None else self.drafter.confidence(slot, context_ids)
