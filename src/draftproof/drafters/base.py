"""What a drafter is: it proposes tokens, and the law that each was drawn from, before the target looks.

The law contract: a draft is built by `Draft.draw` or `Draft.of_token_ids`, so that tokens and laws
can't differ. Whatever a drafter proposes, the output's law is the target's; a bad drafter is only slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from draftproof.core import Draft, Noise, Verdict
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.drafters.anticipating import Anticipating
    from draftproof.grammar import GrammarCursor
    from draftproof.sampling import History, RowParams


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One request's turn to be drafted for.

    slot: the request's slot; a drafter keeps its state per slot.
    context_ids: [L] the whole sequence so far, prompt and output; L is the pass's start. A drafter
        never changes it. It may be one list that grows between calls, or a new sequence each time.
    num_tokens: at most this many drafted tokens; 0 asks for an empty draft.
    max_depth: of a tree at most this many on a path, since a pass emits no more; None for any number.
    noise: the request's noise.
    share_target_field: the verifier accepts drafts that look at the target's field.
    row_params, history: the request's sampling parameters and history, for drafters that sample.
    grammar: the request's grammar at the context's end, None without one: a drafter that draws from what its masks
        allow proposes nothing that the target can't say. forced_ids: what the grammar forces next, with which the
        engine begins the draft (`forced.propose_after_forced`); they count in num_tokens.
    anticipating: given where the verifier's output can't depend on the draft: it may look at a draft and cut it.
    num_branches: how many branches of so many tokens, the newest of the context included, the target scores cheaply;
        None for any number. Only drafters that may look at a draft go by it.
    law_power: what a chain's laws are raised to before they are drawn from; see `sharpened`.
    """

    slot: int
    context_ids: Sequence[int]
    num_tokens: int
    noise: Noise
    share_target_field: bool
    row_params: RowParams
    history: History
    grammar: GrammarCursor | None = None
    forced_ids: tuple[int, ...] = ()
    law_power: float = 1.0
    anticipating: Anticipating | None = None
    num_branches: Callable[[int], int | None] | None = None
    max_depth: int | None = None

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ParameterError("num_tokens", self.num_tokens, "0 or more drafted tokens")
        if self.max_depth is not None and self.max_depth < 1:
            raise ParameterError("max_depth", self.max_depth, "1 or more tokens of a path, or None")

    def deepest(self, most: int) -> int:
        """Tokens on the longest path of a tree whose builder allows `most`."""
        return most if self.max_depth is None else min(most, self.max_depth)


class Drafter(Protocol):
    """Proposes drafts for a batch of requests, and learns from the verdicts.

    Calls on one slot: any number of `propose` and `observe`, then `release`. Nothing breaks if an
    `observe` is left out or a `propose` is repeated: the context is the only truth, and a state that
    disagrees with it is brought up to date or built again.
    """

    method: str
    """The name in `speculative_config`: ngram, suffix or draft_model."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft for each request, in order: start = len(context_ids), at most num_tokens tokens."""
        ...

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Take note of a committed verdict.

        context_ids: [L] as it is after the commit; a stop rule may have cut some of the verdict's tokens.
        """
        ...

    def release(self, slot: int) -> None:
        """Forget the slot's request; the next one in that slot starts afresh."""
        ...

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """A cheap statement about the next proposal, made before drafting, as a bucket's key.

        It depends on the context alone, never on noise, so that a length chosen from it is safe
        under every verifier. None: this drafter has nothing to propose here, or nothing to say
        (see `proposes_without_confidence`).
        """
        ...

    @property
    def proposes_without_confidence(self) -> bool:
        """True if a confidence of None says nothing; False if it announces an empty draft."""
        ...


def grows_trees(drafter: Drafter) -> bool:
    """May a draft have several tokens for one position, and so more of them than are left to be emitted? A drafter
    whose drafts may says so by an attribute of this name."""
    return bool(getattr(drafter, "grows_trees", False))


class ContextIndex(Protocol):
    """Something built up one token at a time: what `IndexedContexts` keeps for each slot."""

    token_ids: list[int]
    """[L] the tokens in the index."""

    def append(self, token_id: int) -> None:
        """Take in the next token."""
        ...


def is_extension(index: ContextIndex, source: Sequence[int] | None, context_ids: Sequence[int]) -> bool:
    """Whether `context_ids` begins with the tokens of `index`.

    source: the sequence object that the index was last brought up to date from. Where it is the same
    list, which only grows, its length and its last indexed tokens are looked at: a step stays cheap
    however long the context is. Any other sequence is compared token by token.
    """
    num_indexed = len(index.token_ids)
    if len(context_ids) < num_indexed:
        return False
    begin = max(0, num_indexed - _NUM_CHECKED) if source is context_ids else 0
    return index.token_ids[begin:] == list(context_ids[begin:num_indexed])


_NUM_CHECKED = 32
