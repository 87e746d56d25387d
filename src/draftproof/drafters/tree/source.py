"""What a tree is grown from: laws after the nodes that a builder asks for, a batch of requests at a time.

One interface for all drafters. A draft model answers a round with one forward over the trunks of all requests; a
drafter whose slots don't see each other (DFlash) has one law for each depth and needs no further pass; one whose slots
see the token before (DSpark, DFlash 2) computes a conditional; n-gram and suffix counts are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Law, Verdict
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.scores import NoiseScores

Look = Callable[[int, int, NDArray[np.int64]], NDArray[np.float32] | None]
"""By slot, position and token ids [D]: what the tree multiplies their probabilities by to rank them, or None."""


class Bounds(NamedTuple):
    """Of a tree that is grown at once. max_depth: tokens of a path. least: [most nodes] the log weights that the first,
    second, … node need to be in it. discounts: [MOST_DEPTHS] added to the log shares of each depth."""

    max_depth: int
    least: NDArray[np.float64]
    discounts: NDArray[np.float64]


class Grown(NamedTuple):
    """A whole tree's candidates, the heaviest first: token ids, parents and depths [3, n], log weights [n]."""

    fields: NDArray[np.int64]
    log_weights: NDArray[np.float64]


class Asked(Protocol):
    """What every source hands on to its drafter, as in `Drafter`."""

    @property
    def method(self) -> str: ...

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None: ...

    def release(self, slot: int) -> None: ...

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None: ...

    @property
    def proposes_without_confidence(self) -> bool: ...


class LawSource(Asked, Protocol):
    """Laws for trees."""

    max_depth: int | None
    """Tokens on the longest path that it can draft; None for no limit of its own."""
    costs_passes: bool
    """A round runs a model; otherwise laws are looked up or at hand."""
    log_discount: float
    """Added to a child's log share at each level: what the laws themselves don't know about going wrong."""
    look: Look | None
    """Given where laws only rank candidates: those after nodes may then leave out tokens that matter to no rank."""

    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The law after each request's context; None where nothing can be drafted."""
        ...

    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """For each tree the laws after the last `num_new[i]` nodes of its trunk; None: nothing can follow there."""
        ...

    def grown(self, request: DraftRequest, law: Law, scores: NoiseScores, bounds: Bounds) -> Grown | None:
        """The best tree, the heaviest node first, where the source grows it sooner than in rounds; else None.

        law: that after the context, as `root_laws` has given it.
        """
        ...

    def went_down(self, slot: int, depth: int) -> None:
        """A tree has had use for laws of so many depths."""
        ...

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """The trees are done."""
        ...


Drafting = TypeVar("Drafting", bound=Asked)


class DrafterSource(Generic[Drafting]):
    """A source of one drafter's laws: what isn't about laws is the drafter's own answer."""

    max_depth: int | None = None
    log_discount = 0.0
    look: Look | None = None

    def __init__(self, drafter: Drafting) -> None:
        self.drafter: Drafting = drafter

    @property
    def method(self) -> str:
        """The drafter's."""
        return self.drafter.method

    @property
    def proposes_without_confidence(self) -> bool:
        """The drafter's."""
        return self.drafter.proposes_without_confidence

    def grown(self, request: DraftRequest, law: Law, scores: NoiseScores, bounds: Bounds) -> Grown | None:
        """In rounds."""
        return None

    def went_down(self, slot: int, depth: int) -> None:
        """Nothing is kept."""

    def observe(self, slot: int, context_ids: Sequence[int], verdict: Verdict) -> None:
        """As the drafter's."""
        self.drafter.observe(slot, context_ids, verdict)

    def release(self, slot: int) -> None:
        """As the drafter's."""
        self.drafter.release(slot)

    def confidence(self, slot: int, context_ids: Sequence[int]) -> float | None:
        """As the drafter's."""
        return self.drafter.confidence(slot, context_ids)
