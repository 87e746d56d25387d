"""Laws from a draft model: a round is one forward over the trunks of all requests.

A round scores the newest token and the whole trunk again, as a tree, and computes logits for its new nodes alone; then
the slot is cut back to the context. What is scored again costs the draft model's layers only: of a small model the
vocabulary's head is the larger part. While a trunk is one path its entries stay in the slot, and nothing is scored
again: a chain costs what it costs the chain drafter.
The cache is `DraftModelDrafter`'s: between calls a slot holds the context without its newest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from draftproof.core import ROOT, Draft, Law
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.draft_model import DraftModelDrafter, Turn
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.source import DrafterSource
from draftproof.errors import ParameterError
from draftproof.targets.base import ScoreRequest

_MOST_SCORED: Final = 32
"""More missing tokens than a deep tree's path are prefilled."""


class ModelSource(DrafterSource[DraftModelDrafter]):
    """A draft model's laws. drafter: its chains are not used, its cache and its way to a law are."""

    costs_passes = True

    def __init__(self, drafter: DraftModelDrafter) -> None:
        if not drafter.model.supports_trees:
            raise ParameterError("topology", "tree", "'chain' with a draft model that has a recurrent state")
        super().__init__(drafter)
        self.model = drafter.model
        # Slot -> how many nodes of a trunk that is one path its entries hold, behind the newest token.
        self._kept: dict[int, int] = {}

    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """One forward over what is missing in each slot."""
        for request in requests:
            # After an error in a round.
            self._cut_back(request.slot)
        turns = [self.drafter.begin(request, _MOST_SCORED) for request in requests]
        able = [turn for turn in turns if not turn.is_done and len(turn.next_ids) <= self.model.room(turn.slot)]
        if not able:
            return [None] * len(requests)
        scores = self.model.score([ScoreRequest(turn.slot, turn.next_ids, num_rows=1) for turn in able])
        for turn in able:
            self.drafter.cached_ids[turn.slot].extend(turn.next_ids[:-1])
            self._kept[turn.slot] = 0
        laws = self.drafter.laws(able, [score[-1] for score in scores])
        by_slot = {turn.slot: law for turn, law in zip(able, laws, strict=True)}
        return [by_slot.get(request.slot) for request in requests]

    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """One forward; a slot without room for its trunk gets no laws."""
        laws: list[list[Law | None]] = [[None] * num for num in num_new]
        for tree, num in zip(trees, num_new, strict=True):
            kept = self._kept.get(tree.request.slot)
            if kept is not None and not _goes_on(tree, kept, num):
                self._cut_back(tree.request.slot)
        able = [
            index
            for index, (tree, num) in enumerate(zip(trees, num_new, strict=True))
            if (num if tree.request.slot in self._kept else 1 + len(tree.trunk)) <= self.model.room(tree.request.slot)
        ]
        if not able:
            return laws
        asked = [
            ScoreRequest(tree.request.slot, (int(tree.token_ids[tree.trunk[-1]]),))
            if tree.request.slot in self._kept
            else _score_request(tree, num_new[index])
            for index, tree in ((index, trees[index]) for index in able)
        ]
        scores = self.model.score(asked)
        for index in able:
            request = trees[index].request
            if request.slot in self._kept:
                self._kept[request.slot] += 1
            else:
                self.model.rewind(request.slot, len(request.context_ids) - 1)
        turns = [_turn_at(trees[index], node) for index in able for node in trees[index].trunk[-num_new[index] :]]
        found = iter(self.drafter.laws(turns, [row for score in scores for row in score]))
        for index in able:
            laws[index] = [next(found) for _ in range(num_new[index])]
        return laws

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """The slots hold the context alone again."""
        for request in requests:
            self._cut_back(request.slot)

    def release(self, slot: int) -> None:
        """Empties the slot."""
        self._kept.pop(slot, None)
        self.drafter.release(slot)

    def _cut_back(self, slot: int) -> None:
        if self._kept.pop(slot, None) is not None:
            self.model.rewind(slot, len(self.drafter.cached_ids[slot]))


def _goes_on(tree: Growing, num_kept: int, num_new: int) -> bool:
    """Whether the new part of the trunk is one token, after the last kept one."""
    above = tree.trunk[-2] if len(tree.trunk) > 1 else ROOT
    return num_new == 1 and num_kept == len(tree.trunk) - 1 and int(tree.parents[tree.trunk[-1]]) == above


def _score_request(tree: Growing, num_new: int) -> ScoreRequest:
    """The newest token and the trunk, of which the last `num_new` nodes are asked for."""
    place = {node: index for index, node in enumerate(tree.trunk, start=1)} | {ROOT: 0}
    token_ids = (int(tree.request.context_ids[-1]), *tree.token_ids[tree.trunk].tolist())
    parents = (-1, *(place[parent] for parent in tree.parents[tree.trunk].tolist()))
    return ScoreRequest(tree.request.slot, token_ids, parents, num_new)


def _turn_at(tree: Growing, node: int) -> Turn:
    """What the drafter makes a law after `node` from, besides the row of logits."""
    point = tree.point(node)
    request = tree.request
    place = Draft.of_token_ids(len(request.context_ids), [int(tree.token_ids[i]) for i in tree.path_to(node)])
    return Turn(request, place, point.history, (), request.num_tokens, point.grammar)
