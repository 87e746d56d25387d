"""Drafts that begin with what a grammar forces, and a drafter that proposes nothing else.

Rule: the draft is the request's forced tokens, and after them what the drafter proposes for the context with these
tokens at its end. A chain that no noise was looked at for is cut before the first token that the grammar forbids.
Inputs: requests with forced_ids and a grammar cursor. Output: drafts of at most num_tokens tokens from the context's
end.
Noise: the drafter's own draws, with the keys that they have in the whole draft: node i of the drafter is node
len(forced_ids) + i of a pass that starts at the context's end. So no key is met again in the next pass.
Why exact: forced tokens are point masses. The drafter's tokens are drawn again in the whole draft from the same laws
with the same keys, which gives the same tokens: tokens and laws are born together there as everywhere.
Edge cases: a drafter that reads the target's hidden states has none for the forced tokens, and is asked only where
there are none; where a sampler's or processor's state can't follow the forced tokens, nothing is drafted after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from numpy.typing import NDArray

from draftproof.core import ROOT, Draft, DrawnWith, Key, Noise, Number, PointMass, Verdict, Weights
from draftproof.drafters.base import Drafter, DraftRequest
from draftproof.errors import DraftContractError, LawError
from draftproof.grammar import GrammarCursor, Phase

READ_CONTEXT_ALONE: Final = frozenset({"ngram", "suffix", "draft_model", "forced"})
"""Methods that draft after any tokens, scored by the target or not."""


class ForcedDrafter:
    """Proposes nothing of its own: with it, drafts are what grammars force."""

    method = "forced"
    proposes_without_confidence = False

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Empty drafts."""
        return [Draft.empty(len(request.context_ids)) for request in requests]

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Nothing to note."""

    def release(self, slot: int) -> None:
        """Nothing to forget."""

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """None: an empty draft."""
        return None


def propose_after_forced(drafter: Drafter, requests: Sequence[DraftRequest]) -> list[Draft]:
    """One draft for each request, its forced tokens first; as `Drafter.propose` otherwise."""
    asked = {index: ask for index, request in enumerate(requests) if (ask := _after_forced(drafter, request))}
    drafts = [Draft.of_token_ids(len(request.context_ids), request.forced_ids) for request in requests]
    tails = drafter.propose(list(asked.values())) if asked else []
    for (index, ask), tail in zip(asked.items(), tails, strict=True):
        request = requests[index]
        if ask.grammar is not None:
            tail = _cut_at_forbidden(tail, ask.grammar)
        drafts[index] = _joined(request, tail) if request.forced_ids else tail
    return drafts


def _after_forced(drafter: Drafter, request: DraftRequest) -> DraftRequest | None:
    """The request as it is after its forced tokens; None if the drafter is not to be asked there."""
    lead = request.forced_ids
    if not lead:
        return request
    grammar = None if request.grammar is None else request.grammar.after_all(lead)
    num_tokens = request.num_tokens - len(lead)
    max_depth = None if request.max_depth is None else request.max_depth - len(lead)
    has_ended = grammar is not None and grammar.phase is Phase.ENDED
    # A sampler's state (mirostat) goes on by the target's law of each token, which is not known here.
    if (
        num_tokens == 0
        or max_depth == 0
        or has_ended
        or request.history.needs_laws
        or drafter.method not in READ_CONTEXT_ALONE
    ):
        return None
    try:
        history = request.history.extended(lead)
    except LawError:
        return None
    return replace(
        request,
        context_ids=[*request.context_ids, *lead],
        num_tokens=num_tokens,
        max_depth=max_depth,
        noise=_Shifted(request.noise, len(request.context_ids), len(lead)),
        history=history,
        grammar=grammar,
        forced_ids=(),
    )


@dataclass(frozen=True, slots=True)
class _Shifted:
    """The request's noise with a later draft's fresh keys turned into those of the pass that starts at `start`."""

    noise: Noise
    start: int
    num_before: int

    def coin(self, key: Key, numerator: Number, denominator: Number = 1) -> bool:
        return self.noise.coin(self._shifted(key), numerator, denominator)

    def choice(self, key: Key, weights: Weights, token_ids: NDArray[Any] | None = None) -> int:
        return self.noise.choice(self._shifted(key), weights, token_ids)

    def field(self, key: Key, vocab_size: int) -> NDArray[Any]:
        """As `KeyedNoise.field`, for trees that look at the target's noise."""
        return self.noise.field(self._shifted(key), vocab_size)  # type: ignore[attr-defined, no-any-return]

    def field_at(self, key: Key, token_ids: NDArray[Any]) -> NDArray[Any]:
        """As `KeyedNoise.field_at`."""
        return self.noise.field_at(self._shifted(key), token_ids)  # type: ignore[attr-defined, no-any-return]

    def _shifted(self, key: Key) -> Key:
        return key if key.purpose.persists else Key(key.purpose, self.start, key.index + self.num_before)


def _joined(request: DraftRequest, tail: Draft) -> Draft:
    """The forced tokens and `tail` after them, as one draft of the pass that starts at the context's end."""
    lead, start = request.forced_ids, len(request.context_ids)
    above = len(lead)
    parents = [above - 1 if parent == ROOT else above + parent for parent in tail.parents]
    if all(isinstance(law, PointMass) for law in tail.laws):
        return Draft.of_token_ids(
            start,
            (*lead, *tail.token_ids),
            (*range(ROOT, above - 1), *parents),
            looked_at_target_field=tail.drawn_with is DrawnWith.TARGET_FIELD,
        )
    draft = Draft.of_token_ids(start, lead)
    shared = tail.drawn_with is DrawnWith.TARGET_FIELD
    for law, parent in zip(tail.laws, parents, strict=True):
        draft = draft.draw(law, request.noise, parent=parent, share_target_field=shared)
    if draft.token_ids[above:] != tail.token_ids:
        raise DraftContractError("a drafter's tokens are not those that its laws and the request's noise give")
    if tail.anticipating:
        # One node more, dropped again, says that the length was chosen after a look.
        return draft.draw(PointMass(0), request.noise).truncated(len(draft), looked_at_dropped=True)
    return draft


def _cut_at_forbidden(draft: Draft, cursor: GrammarCursor) -> Draft:
    """A chain of point masses without its tokens from the first forbidden one on; any other draft as it is."""
    if draft.drawn_with is not DrawnWith.NOTHING or not draft.is_chain:
        return draft
    point: GrammarCursor | None = cursor
    for index, token_id in enumerate(draft.token_ids):
        point = point.after(token_id) if point is not None else None
        if point is None:
            return draft.truncated(index, looked_at_dropped=True)
    return draft
