"""Prompt lookup: propose what followed an earlier occurrence of the context's last tokens.

Rule: take the largest n in [prompt_lookup_min, prompt_lookup_max] whose last-n-token suffix occurs
earlier in the context (prompt and output; it may overlap the suffix), and copy what followed it.

Which occurrence: the most recent one that is followed by as many tokens as were asked for; if there
is none, the earliest one, which is followed by the most. Recent text is the better guide, and in
periodic text the most recent match alone would be followed by one period or less.

Inputs: context_ids [L], num_tokens. Output: a chain of 0 to num_tokens point masses, each run of
which stands in the context after that suffix. Noise: none.
Why exact: the draft is a function of the context alone, and its law is the point mass.
Cost: O(number of n) dictionary steps for each new token, and O(number of n + num_tokens) for a proposal,
whatever L is.
Edge cases: a context shorter than prompt_lookup_min + 1, or no match: an empty draft.
Source: Saxena, "Prompt Lookup Decoding" (2023); the parameter names are vLLM's. Deviations: the choice
of the occurrence (vLLM and transformers take the earliest), and defaults of 2 to 5, where vLLM's is 5 to 5
unless one is given: a single token repeats by chance too often to be worth a forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.indexed import IndexedContexts
from draftproof.errors import ParameterError

NO_OCCURRENCE = -1


class NgramIndex:
    """For each n, where every n-gram of the context ended, as chains from the most recent backwards.

    An n-gram enters the index when the token after it arrives, so that every entry has a continuation
    and the context's own suffix is never its own match.
    """

    def __init__(self, min_length: int, max_length: int) -> None:
        self.token_ids: list[int] = []
        self._lengths = range(max_length, min_length - 1, -1)
        self._last_end: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in self._lengths}
        self._previous_end: dict[int, list[int]] = {n: [] for n in self._lengths}

    def append(self, token_id: int) -> None:
        """Take in one token: the n-grams that end before it become matchable."""
        ids = self.token_ids
        end = len(ids) - 1
        for length in self._lengths:
            if end < 0:
                break
            previous = NO_OCCURRENCE
            if end + 1 >= length:
                ngram = tuple(ids[end + 1 - length :])
                last_end = self._last_end[length]
                previous = last_end.get(ngram, NO_OCCURRENCE)
                last_end[ngram] = end
            self._previous_end[length].append(previous)
        ids.append(token_id)

    def longest_match(self) -> tuple[int, int] | None:
        """(n, end): the longest matching n and where its most recent earlier occurrence ends; None without one."""
        for length in self._lengths:
            if len(self.token_ids) > length:
                end = self._last_end[length].get(tuple(self.token_ids[-length:]), NO_OCCURRENCE)
                if end != NO_OCCURRENCE:
                    return length, end
        return None

    def ends(self, max_num: int) -> list[int]:
        """Where the last `max_num` earlier occurrences of the longest match end, the most recent first."""
        match = self.longest_match()
        if match is None:
            return []
        length, end = match
        found: list[int] = []
        while end != NO_OCCURRENCE and len(found) < max_num:
            found.append(end)
            end = self._previous_end[length][end]
        return found

    def continuation(self, num_tokens: int) -> list[int]:
        """[0..num_tokens] the tokens after the chosen occurrence of the longest match."""
        match = self.longest_match()
        if match is None or num_tokens == 0:
            return []
        length, end = match
        previous_end = self._previous_end[length]
        # Ends fall by 1 or more at each step, so at most num_tokens steps are taken.
        while end + num_tokens >= len(self.token_ids) and previous_end[end] != NO_OCCURRENCE:
            end = previous_end[end]
        return self.token_ids[end + 1 : end + 1 + num_tokens]


class NgramDrafter:
    """Prompt lookup over each slot's own context.

    prompt_lookup_min, prompt_lookup_max: the shortest and the longest suffix that is looked up, in tokens.
    """

    method = "ngram"
    proposes_without_confidence = False

    def __init__(self, prompt_lookup_min: int = 2, prompt_lookup_max: int = 5) -> None:
        if prompt_lookup_min < 1:
            raise ParameterError("prompt_lookup_min", prompt_lookup_min, "1 or more tokens")
        if prompt_lookup_max < prompt_lookup_min:
            raise ParameterError(
                "prompt_lookup_max", prompt_lookup_max, f"prompt_lookup_min ({prompt_lookup_min}) or more tokens"
            )
        self.prompt_lookup_min = prompt_lookup_min
        self.prompt_lookup_max = prompt_lookup_max
        self.contexts = IndexedContexts(lambda: NgramIndex(prompt_lookup_min, prompt_lookup_max))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One chain of point masses for each request; see `Drafter.propose`."""
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> Draft:
        start = len(request.context_ids)
        if request.num_tokens == 0:
            return Draft.empty(start)
        index = self.contexts.up_to_date(request.slot, request.context_ids)
        return Draft.of_token_ids(start, index.continuation(request.num_tokens))

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """Index what was committed."""
        self.contexts.up_to_date(slot, context_ids)

    def release(self, slot: int) -> None:
        """Forget the slot's context."""
        self.contexts.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """The length of the longest match in tokens; None where there is none, and so nothing to propose."""
        match = self.contexts.up_to_date(slot, context_ids).longest_match()
        return None if match is None else float(match[0])
