"""The nouns that every package shares: Key and Noise (from `keys`), Law (from `laws`), Draft (from `draft`), Verdict.

Tokens and the law that they were drawn from are born together; see `draft`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from draftproof.draft import ROOT, Draft, DrawnWith, Siblings
from draftproof.keys import Key, Noise, Purpose
from draftproof.laws import Dense, Law, Number, PointMass, Sparse, Weights, Without

__all__ = [
    "ROOT",
    "Decision",
    "Dense",
    "Draft",
    "DrawnWith",
    "Key",
    "Law",
    "Noise",
    "Number",
    "Outcome",
    "PointMass",
    "Purpose",
    "Siblings",
    "Sparse",
    "Verdict",
    "Weights",
    "Without",
]


class Outcome(Enum):
    """How an emitted token came to be."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided at one emitted position, for traces.

    node: the draft's node that was accepted or, on a rejection, tried first; ROOT if none was there.
    target_prob, draft_prob: of the drafted token at that node; None without a draft.
    """

    position: int
    node: int
    drafted_id: int | None
    emitted_id: int
    outcome: Outcome
    target_prob: Number | None
    draft_prob: Number | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided about one draft.

    token_ids: the emitted tokens, accepted ones and then exactly one recovered or bonus token.
    path: node indices of the accepted tokens, root side first; len(path) is the commit signal.
    decisions: one for each emitted token.
    num_positions_agreeing: telemetry only, never a commit signal: at how many of the draft's
    positions the test alone would pass, past a rejection too. None when telemetry is off.
    """

    token_ids: tuple[int, ...]
    path: tuple[int, ...]
    decisions: tuple[Decision, ...]
    num_positions_agreeing: int | None = None

    @property
    def num_accepted(self) -> int:
        """How many drafted tokens were accepted: emitted tokens less one."""
        return len(self.token_ids) - 1

    @property
    def outcome(self) -> Outcome:
        """How the last token came to be: RECOVERED or BONUS."""
        return self.decisions[-1].outcome
