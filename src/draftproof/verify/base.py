"""What a verifier is: a pure function (draft, target laws, noise) -> Verdict.

`VERIFIERS` in the package's `__init__` lists the verifiers; each has a file of its own. They never
call a generator: they are written against `Noise.coin` and `Noise.choice`, which keyed streams supply in
production and an enumerating oracle in proofs, and their arithmetic runs on floats and on Fractions alike.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias, final

from draftproof.core import Draft, DrawnWith, Law, Noise, Number, PointMass, Siblings, Verdict
from draftproof.errors import DraftContractError, LawError, ParameterError
from draftproof.verify.siblings import check_siblings

Guarantee: TypeAlias = Literal["replay", "exact-law"]
Row: TypeAlias = Law | LawError
"""A target row: its law, or the error that the sampler chain found there."""


class TargetRows:
    """The target's rows of one draft, checked when they are consulted.

    Row 0 is the law after the context, row i + 1 the law after node i. A row that no emitted token needs is
    never looked at, so its LawError is never raised: plain decoding would not have met it either.
    """

    __slots__ = ("_checked", "_draft", "_rows")

    def __init__(self, draft: Draft, rows: Sequence[Row]) -> None:
        if len(rows) != len(draft) + 1:
            raise ParameterError(
                "target_laws",
                f"{len(rows)} rows",
                f"{len(draft) + 1} rows for a draft of {len(draft)} tokens",
                "row 0 is the law after the context, row i + 1 the law after node i",
            )
        self._draft, self._rows = draft, rows
        self._checked: dict[int, Law] = {}

    def after(self, node: int) -> Law:
        """The law of the token that follows `node` (ROOT: the context). Raises LawError if the row is no law."""
        if node in self._checked:
            return self._checked[node]
        row = self._rows[node + 1]
        if isinstance(row, LawError):
            raise LawError(row.message, request_id=row.request_id, position=self._position(node))
        if not isinstance(row, PointMass):
            total = row.weights()[0].sum()
            if not _sums_to_one(total):
                raise LawError(
                    f"the target's probabilities sum to {total}, and a law's sum to 1: "
                    "look for NaN logits, masks that leave no token, or weights that were not normalised",
                    position=self._position(node),
                )
        self._checked[node] = row
        return row

    def is_law_after(self, node: int) -> bool:
        """True if `after(node)` gives a law."""
        try:
            self.after(node)
        except LawError:
            return False
        return True

    def _position(self, node: int) -> int:
        return self._draft.start + (0 if node < 0 else self._draft.depths[node] + 1)


class Verifier(ABC):
    """Turns a draft and the target's laws into emitted tokens. Stateless: one instance serves every request.

    name: as in `get_verifier`.
    guarantee: "replay" (the same tokens as plain decoding with the same noise) or "exact-law" (the same law).
    needs_draft_law: the rule divides by the law that tokens were drawn from. Such a verifier refuses drafts that
        looked at the target's noise and drafts whose length looked at a token that was then dropped; the others
        emit the same tokens or the same law whatever the draft is.
    supports_trees: drafts with branches are accepted; otherwise chains only.
    siblings: how the children of a node must have been drawn; None if the rule takes any.
    supports_branches_below: a node other than the context may have several children.
    """

    name: ClassVar[str]
    guarantee: ClassVar[Guarantee]
    needs_draft_law: ClassVar[bool]
    supports_trees: ClassVar[bool]
    siblings: ClassVar[Siblings | None] = None
    supports_branches_below: ClassVar[bool] = True

    @final
    def accepts(self, draft: Draft) -> None:
        """Raises DraftContractError if this verifier could not keep its guarantee under `draft`."""
        if not self.supports_trees and not draft.is_chain:
            raise DraftContractError(
                f"the draft is a tree and {self.name!r} verifies chains; draft a chain, or use 'keyed' or 'match'"
            )
        if not self.needs_draft_law:
            return
        if draft.drawn_with is DrawnWith.TARGET_FIELD:
            raise DraftContractError(
                f"the draft was drawn with the target's own noise, which biases the ratio test of {self.name!r}; "
                "draw it with share_target_field=False, or use 'keyed'"
            )
        if draft.anticipating:
            raise DraftContractError(
                f"the draft's length was chosen after a look at a token that was dropped, which biases {self.name!r}; "
                "choose the length before drawing, keep the token that was looked at, or use 'keyed' or 'match'"
            )
        if self.siblings is not None and not draft.is_chain:
            check_siblings(draft, self.siblings, self.name)
        if not self.supports_branches_below and not _is_paths(draft):
            raise DraftContractError(
                f"{self.name!r} verifies paths that part at the context only, and this draft branches below it; "
                "draft whole paths, or use 'traversal'"
            )

    @final
    def verify(self, draft: Draft, target_laws: Sequence[Row], noise: Noise, *, telemetry: bool = False) -> Verdict:
        """The verdict on `draft`.

        draft: up to len(draft) tokens, with the laws that they were drawn from.
        target_laws: len(draft) + 1 rows; row 0 is the law after the context, row i + 1 the law after node i. A
            LawError in a row's place is raised if the row is needed.
        noise: the request's noise; which keys are consumed stands at the top of each verifier's file.
        telemetry: also count `num_positions_agreeing`; changes nothing else.
        Raises DraftContractError (see `accepts`), LawError (with the absolute position), ParameterError.
        """
        self.accepts(draft)
        rows = TargetRows(draft, target_laws)
        verdict = self._decide(draft, rows, noise)
        if not telemetry:
            return verdict
        num_agreeing = self._num_positions_agreeing(draft, rows, noise)
        return dataclasses.replace(verdict, num_positions_agreeing=num_agreeing)

    @final
    def __call__(self, draft: Draft, target_laws: Sequence[Row], noise: Noise, *, telemetry: bool = False) -> Verdict:
        """`verify` by another name, so that a step reads `verdict = verifier(draft, laws, noise)`."""
        return self.verify(draft, target_laws, noise, telemetry=telemetry)

    def __repr__(self) -> str:
        return f"<verifier {self.name}: {self.guarantee}, {'trees' if self.supports_trees else 'chains'}>"

    @abstractmethod
    def _decide(self, draft: Draft, rows: TargetRows, noise: Noise) -> Verdict:
        """The rule itself; `draft` has passed `accepts`."""

    @abstractmethod
    def _num_positions_agreeing(self, draft: Draft, rows: TargetRows, noise: Noise) -> int:
        """At how many nodes the rule's own test passes, whatever happened at the nodes before."""


def _is_paths(draft: Draft) -> bool:
    below = [parent for parent in draft.parents if parent >= 0]
    return len(set(below)) == len(below)


_LARGEST_SUM_ERROR = 1e-3
"""More than rounding: float32 rows of 300,000 tokens sum to 1 within 1e-5."""


def _sums_to_one(total: Number) -> bool:
    return bool(1 - _LARGEST_SUM_ERROR < total < 1 + _LARGEST_SUM_ERROR)


def drawn_prob(draft: Draft, node: int) -> Number:
    """The probability that node's token had in the law that it was drawn from; see `prob_in`."""
    return prob_in(draft.laws[node], draft.token_ids[node], node)


def prob_in(law: Law, token_id: int, node: int) -> Number:
    """The probability of `token_id` in the law that it was drawn from, at `node`.

    Raises DraftContractError if it is 0, or if that law's probabilities don't sum to 1: a ratio with
    weights that were not normalised would be biased in silence.
    """
    draft_prob = law.prob(token_id)
    if not isinstance(law, PointMass) and not _sums_to_one(total := law.weights()[0].sum()):
        raise DraftContractError(
            f"node {node}: the probabilities of the law that its token is said to be drawn from sum to {total}, "
            "not to 1; look for NaN in the drafter's logits, or normalise the drafter's weights"
        )
    if not 0 < draft_prob < math.inf:
        raise DraftContractError(
            f"node {node}: token {token_id} has probability {draft_prob} in the law that it is said to be drawn from; "
            "add tokens with Draft.draw or Draft.of_token_ids only"
        )
    return draft_prob
