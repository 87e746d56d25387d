"""How often a drafted token is accepted, by confidence and by its place in the draft.

rate(confidence, j) estimates the probability that token j is accepted, given that tokens 0..j-1 were.
Every estimate is a mean with forgetting, (accepted + strength * prior) / (tried + strength), and falls
back in this order: this request at this confidence and place; the engine's requests there; all places at
this confidence; everything; one half.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Confidence: TypeAlias = float | None
LOOKUP_CLASS: Final = 1000.0
"""Confidences from here on are of drafts that a drafter with weights was not asked for."""

FORGETTING: Final = 0.95
"""Weight that older trials of one place keep at each new trial: a memory of about 20 trials."""
PRIOR_STRENGTH: Final = 2.0
"""The prior counts as this many trials."""
FIRST_PRIOR: Final = 0.5
NUM_FIRST: Final = 6
"""Drafts after which it is believed that drafting doesn't pay."""


class _Mean:
    """A share of successes with exponential forgetting."""

    __slots__ = ("accepted", "tried")

    def __init__(self) -> None:
        self.accepted = 0.0
        self.tried = 0.0

    def add(self, accepted: bool) -> None:
        self.accepted = FORGETTING * self.accepted + accepted
        self.tried = FORGETTING * self.tried + 1.0

    def scale(self, factor: float) -> None:
        self.accepted *= factor
        self.tried *= factor

    def given(self, prior: float) -> float:
        return (self.accepted + PRIOR_STRENGTH * prior) / (self.tried + PRIOR_STRENGTH)


class AcceptanceRates:
    """Statistics of one request (`prior`: the engine's), or of an engine (`prior` None)."""

    def __init__(self, prior: AcceptanceRates | None = None) -> None:
        self._prior = prior
        self._everything = _Mean()
        self._num_drafts = 0
        self._by_confidence: dict[Confidence, _Mean] = {}
        self._by_place: dict[Confidence, list[_Mean]] = {}

    def observe(self, num_drafted: int, num_accepted: int, confidence: Confidence) -> None:
        """Take in one verdict: tokens 0..num_accepted-1 accepted, the next one not if there was one."""
        self._num_drafts += num_drafted > 0
        places = self._by_place.setdefault(confidence, [])
        pooled = self._by_confidence.setdefault(confidence, _Mean())
        for place in range(min(num_accepted + 1, num_drafted)):
            if place == len(places):
                places.append(_Mean())
            for mean in (places[place], pooled, self._everything):
                mean.add(place < num_accepted)
        if self._prior is not None:
            self._prior.observe(num_drafted, num_accepted, confidence)

    def forget_half(self, confidence: Confidence) -> None:
        """Halve the weight of what is known at this confidence: the text has changed."""
        pooled = self._by_confidence.get(confidence, self._everything)
        for mean in (*self._by_place.get(confidence, ()), pooled):
            mean.scale(0.5)
        if self._prior is not None:
            self._prior.forget_half(confidence)

    def rate(self, confidence: Confidence, place: int) -> float:
        """The probability that token `place` is accepted if those before it were, strictly between 0 and 1."""
        if self._prior is not None:
            prior = self._prior.rate(confidence, place)
        else:
            everything = self._everything.given(FIRST_PRIOR)
            pooled = self._by_confidence.get(confidence)
            prior = everything if pooled is None else pooled.given(everything)
        places = self._by_place.get(confidence, ())
        return places[place].given(prior) if place < len(places) else prior

    def has_tried(self, confidence: Confidence) -> bool:
        """Whether anything was drafted at this confidence, and NUM_FIRST drafts at any: in this request, or in the
        engine's others. Before that one rejected draft would weigh more than it tells."""
        if self._prior is not None and self._prior.has_tried(confidence):
            return True
        return confidence in self._by_place and self._num_drafts >= NUM_FIRST

    def expected_accepted(self, confidence: Confidence, max_tokens: int) -> list[float]:
        """[max_tokens + 1] the expected number of accepted tokens for drafts of 0..max_tokens tokens."""
        expected, all_accepted = [0.0], 1.0
        for place in range(max_tokens):
            all_accepted *= self.rate(confidence, place)
            expected.append(expected[-1] + all_accepted)
        return expected
