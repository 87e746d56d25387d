"""Rules that look at drafted tokens and cut the draft: for verifiers whose output can't depend on it.

A ratio test is exact only if each tested token was drawn from the law that is handed in. A rule that
drops a sampled token because of what it is changes that law: the tokens that stay are those that the
rule let pass. Point masses have no noise to look at, and are never refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from draftproof.core import Draft, DrawnWith
from draftproof.errors import DraftContractError, ParameterError


class StopRule(Protocol):
    """Decides, from the drafted tokens and their laws, how much of a draft is worth verifying."""

    def num_kept(self, draft: Draft) -> int:
        """How many of the draft's first nodes stay, 0 to len(draft)."""
        ...


@dataclass(frozen=True, slots=True)
class MinDraftProb:
    """Cut a chain before the first token that its own law gives less than `threshold`, in [0, 1]."""

    threshold: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise ParameterError("draft_p_min", self.threshold, "a probability, 0 to 1")

    def num_kept(self, draft: Draft) -> int:
        """The index of the first token below the threshold, len(draft) if there is none."""
        for index, (token_id, law) in enumerate(zip(draft.token_ids, draft.laws, strict=True)):
            if law.prob(token_id) < self.threshold:
                return index
        return len(draft)


def cut(draft: Draft, rule: StopRule, *, verifier_needs_draft_law: bool) -> Draft:
    """The part of `draft` that `rule` keeps.

    Raises DraftContractError for sampled tokens under a verifier that tests them against their law
    (rejection, block), even where nothing is dropped: that nothing was is what the rule has seen.
    """
    if verifier_needs_draft_law and draft.drawn_with is not DrawnWith.NOTHING:
        raise DraftContractError(
            f"the stop rule {rule} looks at tokens that were drawn with {draft.drawn_with.value}, and the verifier "
            "tests them against their law; use the verifier keyed or match, or a length policy that chooses before "
            "drafting (fixed or auto)"
        )
    return draft.truncated(rule.num_kept(draft), looked_at_dropped=True)
