"""Suffix decoding: follow the longest repeated suffix, and draft what came after it most often.

Rule, for each drafted token: take the longest suffix of (context, draft so far) that occurs in the
context with a token after it and has min_match_length to max_match_length tokens; draft the token that
followed it most often, of equally frequent ones the one that followed most recently. Stop when there is
no such suffix, or when the product of the followers' shares (occurrences of that follower / occurrences
with any follower) falls below min_token_prob.

Inputs: context_ids [L], num_tokens. Output: a chain of 0 to num_tokens point masses. Noise: none.
Why exact: the draft is a function of the context alone, and its law is the point mass. The stop at
min_token_prob looks at drafted tokens, but at no noise.
Cost: amortised O(max_match_length) for each new token, whatever L is; a drafted token costs as many
steps as its suffix has different followers.
Edge cases: an empty or never repeating context: an empty draft. In periodic text the draft goes on past
the context's end, since what it drafted so far takes part in the suffix.
Source: Oliaro et al., "SuffixDecoding", 2411.04975, section 4. Deviations: an automaton of the request's
own text instead of a tree that all requests share; one chain, no tree; the suffix is matched anew after
each drafted token.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from draftproof.core import Draft, Verdict
from draftproof.drafters.automaton import Place, SuffixAutomaton
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.indexed import IndexedContexts
from draftproof.errors import ParameterError

DEFAULT_MAX_MATCH_LENGTH: Final = 32
_LENGTH_CLASSES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_UNANIMOUS: Final = 0.5


class SuffixDrafter:
    """Longest repeated suffix of each slot's own context, with counts.

    min_match_length, max_match_length: the shortest and the longest suffix that counts as a match, in tokens.
    min_token_prob: in [0, 1]; a drafted token whose estimated probability, given the context, is below
        it ends the draft. 0 drafts on while anything matches.
    """

    method = "suffix"
    proposes_without_confidence = False

    def __init__(
        self,
        min_match_length: int = 2,
        max_match_length: int = DEFAULT_MAX_MATCH_LENGTH,
        min_token_prob: float = 0.1,
    ) -> None:
        if min_match_length < 1:
            raise ParameterError("min_match_length", min_match_length, "1 or more tokens")
        if max_match_length < min_match_length:
            raise ParameterError(
                "max_match_length", max_match_length, f"min_match_length ({min_match_length}) or more tokens"
            )
        if not 0.0 <= min_token_prob <= 1.0:
            raise ParameterError("min_token_prob", min_token_prob, "a probability, 0 to 1")
        self.min_match_length = min_match_length
        self.max_match_length = max_match_length
        self.min_token_prob = min_token_prob
        self.contexts = IndexedContexts(lambda: SuffixAutomaton(count_depth=max_match_length + 1))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One chain of point masses for each request; see `Drafter.propose`."""
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        start = len(request.context_ids)
        if request.num_tokens == 0:
            return Draft.empty(start)
        automaton = self.contexts.up_to_date(request.slot, request.context_ids)
        return Draft.of_token_ids(start, self._continuation(automaton, request.num_tokens))

    def _continuation(self, automaton: SuffixAutomaton, num_tokens: int) -> list[int]:
        token_ids: list[int] = []
        place, prob = automaton.tail, 1.0
        while len(token_ids) < num_tokens:
            match = self.match(automaton, place)
            if match is None:
                break
            follower = automaton.follower(match.state)
            prob *= follower.num_occurrences / follower.num_followed
            if prob < self.min_token_prob:
                break
            token_ids.append(follower.token_id)
            place = Place(follower.state, match.length + 1)
        return token_ids

    def match(self, automaton: SuffixAutomaton, place: Place) -> Place | None:
        """The longest suffix of `place` that counts as a match and that some token follows; None without one."""
        match = automaton.with_follower(automaton.shortened(place, self.max_match_length))
        return match if match.length >= self.min_match_length else None

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Take in what was committed."""
        self.contexts.up_to_date(slot, context_ids)

    def release(self, slot: int) -> None:
        """Forget the slot's context."""
        self.contexts.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """A class of match lengths (1, 2, 3, 4, 6, 8, 12, 16, 24 tokens or more), plus 0.5 if one token alone followed.

        None where nothing would be drafted.
        """
        automaton = self.contexts.up_to_date(slot, context_ids)
        match = self.match(automaton, automaton.tail)
        if match is None:
            return None
        follower = automaton.follower(match.state)
        if follower.num_occurrences / follower.num_followed < self.min_token_prob:
            return None
        length_class = _LENGTH_CLASSES[bisect_right(_LENGTH_CLASSES, match.length) - 1]
        return length_class + (_UNANIMOUS if follower.num_occurrences == follower.num_followed else 0.0)
