"""A draft: tokens, their topology, and for each the law that it was drawn from, born together.

`Draft.draw` and `Draft.draw_children` are the only ways to add sampled tokens to a draft, and they record the very
arrays that the tokens were drawn from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import DraftContractError, ParameterError
from draftproof.keys import Key, Noise, Purpose
from draftproof.laws import Dense, Law, PointMass, Sparse, Weights, Without

ROOT: Final = -1
"""The parent of a draft's first node: the context itself."""


class DrawnWith(Enum):
    """Which noise a draft's tokens looked at. A verifier refuses what would bias it."""

    NOTHING = "no noise (point masses)"
    FRESH = "its own stream, fresh in every pass"
    TARGET_FIELD = "the target's field, shared"


class Siblings(Enum):
    """How the children of one node are drawn, each given those before it."""

    INDEPENDENT = "independent draws of one law"
    WITHOUT_REPLACEMENT = "draws without replacement"
    RANKED_AND_ONE = "the most probable tokens, and one draw from the others"


@final
@dataclass(frozen=True, slots=True, init=False)
class Draft:
    """Drafted tokens, their topology, and for each the law that it was drawn from.

    A chain is a tree with one branch. Node i has token `token_ids[i]`, parent `parents[i]` < i
    (ROOT for a child of the context) and was drawn from `laws[i]`. `start` is the absolute
    position of the first drafted token, which is also where the pass starts.

    Built by `Draft.empty(start)`, `.draw(…)` and `.draw_children(…)`, or by `Draft.of_token_ids(…)` for tokens
    that no law was sampled for; there is no way to hand in tokens and laws apart.
    """

    start: int
    token_ids: tuple[int, ...] = field(default=())
    parents: tuple[int, ...] = field(default=())
    laws: tuple[Law, ...] = field(default=())
    depths: tuple[int, ...] = field(default=())
    drawn_with: DrawnWith = field(default=DrawnWith.NOTHING)
    anticipating: bool = field(default=False)

    @classmethod
    def empty(cls, start: int) -> Draft:
        """A draft without tokens, for the pass that starts at absolute position `start`."""
        if start < 0:
            raise ParameterError("start", start, "an absolute position, 0 or more")
        return _make(start, (), (), (), (), DrawnWith.NOTHING, False)

    @classmethod
    def of_token_ids(
        cls,
        start: int,
        token_ids: Iterable[int],
        parents: Sequence[int] | None = None,
        *,
        looked_at_target_field: bool = False,
    ) -> Draft:
        """Tokens chosen by a rule (n-gram, argmax, rank): each one's law is the point mass on it.

        `parents` None makes a chain. A chain ends before the first negative id, the padding of ragged batches.
        looked_at_target_field: the rule saw the target's noise, as a noise-aware tree's does.
        """
        if start < 0:
            raise ParameterError("start", start, "an absolute position, 0 or more")
        ids: list[int] = []
        depths: list[int] = []
        for index, token_id in enumerate(token_ids):
            if token_id < 0:
                if parents is not None:
                    raise ParameterError("token_ids", token_id, "an id of 0 or more in every node of a tree")
                break
            parent = index - 1 if parents is None else parents[index]
            _check_parent(parent, index)
            ids.append(int(token_id))
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        chain = range(ROOT, len(ids) - 1) if parents is None else parents
        drawn_with = DrawnWith.TARGET_FIELD if looked_at_target_field and ids else DrawnWith.NOTHING
        laws = tuple(PointMass(token_id) for token_id in ids)
        return _make(start, tuple(ids), tuple(int(i) for i in chain), laws, tuple(depths), drawn_with, False)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """True if every node is the child of the node before it."""
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def draw(self, law: Law, noise: Noise, *, parent: int | None = None, share_target_field: bool = False) -> Draft:
        """This draft and one more token, drawn from `law`.

        law: the drafter's law at that node. parent: the node's parent, the last node if None.
        share_target_field: draw with the target's own field at that position, which only verifiers
        whose output can't depend on the draft accept; otherwise with a stream that is fresh in
        every pass.
        """
        parent = len(self) - 1 if parent is None else parent
        if isinstance(law, PointMass):
            return self._with(law.token_id, parent, law, DrawnWith.NOTHING)
        if share_target_field:
            key, drawn_with = Key(Purpose.TARGET, self.start + self._depth(parent)), DrawnWith.TARGET_FIELD
        else:
            key, drawn_with = Key(Purpose.DRAFT, self.start, len(self)), DrawnWith.FRESH
        return self._with(law.draw(noise, key), parent, law, drawn_with)

    def draw_children(
        self, law: Law, noise: Noise, num_children: int, *, siblings: Siblings, parent: int | None = None
    ) -> Draft:
        """This draft and up to `num_children` children of `parent` (None: the last node), drawn from `law`.

        Tokens that differ are no more than the law has; a point mass has one child however they are drawn. The noise
        is a stream that is fresh in every pass. Each child's law is the one that it was drawn from, given those before
        it: `law` itself, `Without(law, …)`, or the point mass on a ranked token.
        """
        parent = len(self) - 1 if parent is None else parent
        draft = self
        if isinstance(law, PointMass):
            return draft._with(law.token_id, parent, law, DrawnWith.NOTHING) if num_children > 0 else draft
        if siblings is Siblings.INDEPENDENT:
            for _ in range(num_children):
                draft = draft.draw(law, noise, parent=parent)
            return draft
        if not isinstance(law, (Dense, Sparse)):
            raise ParameterError("law", type(law).__name__, "a Dense or a Sparse law, or a point mass")
        probs, token_ids = law.weights()
        num_children = min(num_children, int(np.count_nonzero(probs)))
        taken: list[int] = []
        if siblings is Siblings.RANKED_AND_ONE and num_children > 1:
            taken = [int(i if token_ids is None else token_ids[i]) for i in _ranked(probs, num_children - 1)]
            for token_id in taken:
                draft = draft._with(token_id, parent, PointMass(token_id), DrawnWith.NOTHING)
        while len(taken) < num_children:
            draft = draft.draw(Without(law, tuple(taken)) if taken else law, noise, parent=parent)
            taken.append(draft.token_ids[-1])
        return draft

    def truncated(self, num_tokens: int, *, looked_at_dropped: bool) -> Draft:
        """The first `num_tokens` nodes. looked_at_dropped: the length was chosen after seeing a dropped token."""
        if num_tokens >= len(self):
            return self
        n = max(num_tokens, 0)
        return _make(
            self.start,
            self.token_ids[:n],
            self.parents[:n],
            self.laws[:n],
            self.depths[:n],
            self.drawn_with if n else DrawnWith.NOTHING,
            self.anticipating or (looked_at_dropped and self.drawn_with is not DrawnWith.NOTHING),
        )

    def path_to(self, node: int) -> tuple[int, ...]:
        """Node indices from the root's child down to `node`; () for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def children_of(self, node: int) -> tuple[int, ...]:
        """Node indices whose parent is `node` (ROOT: the context), in the order they were drawn."""
        return tuple(index for index, parent in enumerate(self.parents) if parent == node)

    def _depth(self, parent: int) -> int:
        return 0 if parent == ROOT else self.depths[parent] + 1

    def _with(self, token_id: int, parent: int, law: Law, drawn_with: DrawnWith) -> Draft:
        _check_parent(parent, len(self))
        kinds = {self.drawn_with, drawn_with} - {DrawnWith.NOTHING}
        if len(kinds) > 1:
            raise DraftContractError(
                "one draft mixes tokens drawn with the target's field and with a fresh stream; draw all of them one way"
            )
        return _make(
            self.start,
            (*self.token_ids, token_id),
            (*self.parents, parent),
            (*self.laws, law),
            (*self.depths, self._depth(parent)),
            kinds.pop() if kinds else DrawnWith.NOTHING,
            self.anticipating,
        )


def _ranked(probs: Weights, num_ranks: int) -> NDArray[np.int64]:
    """Indices of the `num_ranks` largest probabilities, the largest first, the lowest index first on ties."""
    smallest = np.partition(probs, len(probs) - num_ranks)[len(probs) - num_ranks]
    candidates = np.flatnonzero(probs >= smallest)
    return candidates[np.argsort(-probs[candidates], kind="stable")][:num_ranks]


def _check_parent(parent: int, num_nodes: int) -> None:
    if not ROOT <= parent < num_nodes:
        raise ParameterError("parent", parent, f"a node of the draft so far, {ROOT} to {num_nodes - 1}")


def _make(
    start: int,
    token_ids: tuple[int, ...],
    parents: tuple[int, ...],
    laws: tuple[Law, ...],
    depths: tuple[int, ...],
    drawn_with: DrawnWith,
    anticipating: bool,
) -> Draft:
    draft, put = object.__new__(Draft), object.__setattr__
    put(draft, "start", start)
    put(draft, "token_ids", token_ids)
    put(draft, "parents", parents)
    put(draft, "laws", laws)
    put(draft, "depths", depths)
    put(draft, "drawn_with", drawn_with)
    put(draft, "anticipating", anticipating)
    return draft
