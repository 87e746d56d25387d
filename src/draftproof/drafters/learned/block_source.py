"""Laws for trees from a block drafter whose slots see the token before: DSpark, DFlash 2, Domino. One pass a draft.

The backbone runs once for each draft. A node's law is its slot's logits, corrected after the node's own token and, for
recurrent heads, after the state that its path has left: a small product for each node, and no further pass. Where the
tree's laws only rank candidates, and the correction depends on the token alone, it is over a list of likely tokens
(`short_lists.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from draftproof.core import ROOT, Draft, Law, Sparse
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.grown import growing, noise_of
from draftproof.drafters.learned.short_lists import Bias, ShortLists
from draftproof.drafters.learned.turn import Turn
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.scores import NoiseScores
from draftproof.drafters.tree.source import Bounds, DrafterSource, Grown

if TYPE_CHECKING:
    from draftproof.drafters.learned.block_drafter import BlockDrafter


LESS: Final = 0.25
"""Slots."""


@dataclass(slots=True)
class _Block:
    """One request's slots: hidden [n, hidden], logits [n, V]; and the turn that each node's law came from, or lists."""

    hidden: torch.Tensor
    logits: torch.Tensor
    lists: ShortLists | None
    turns: dict[int, Turn] = field(default_factory=dict)


class _Reach:
    """How many slots a request's drafts have asked for: the most lately, less LESS for each draft since.

    A draft is given one more, and may ask for those that it wasn't given.
    """

    def __init__(self, first: int) -> None:
        self._most = float(first)

    def next(self) -> int:
        """Slots of another draft."""
        num = math.ceil(self._most) + 1
        self._most = max(self._most - LESS, 1.0)
        return num

    def asked(self, num_slots: int) -> None:
        """A law of the last of so many slots was asked for."""
        self._most = max(self._most, float(num_slots))


class BlockSource(DrafterSource["BlockDrafter"]):
    """Conditionals of `drafter`'s slots."""

    costs_passes = False

    def __init__(self, drafter: BlockDrafter) -> None:
        super().__init__(drafter)
        self.max_depth = drafter.layout.num_drafts
        self._blocks: dict[int, _Block] = {}
        self._reaches: dict[int, _Reach] = {}
        self._bias: Bias | None = None
        # Compiled, or found, before anything waits for it.
        growing()

    @torch.no_grad()
    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The drafter's one pass; the laws of the first slot."""
        turns = [Turn(request, self._num_slots(request)) for request in requests]
        going = [turn for turn in turns if not turn.is_done]
        self._blocks = {}
        if not going:
            return [None] * len(requests)
        first, longest = self.drafter.layout.first_slot, max(turn.num_tokens for turn in going)
        hidden = self.drafter._run(going)[:, first : first + longest]
        logits = self.drafter.model.scaled(self.drafter.ends.logits(hidden))
        for turn in going:
            lists = self._lists(turn, logits[turn.row])
            block = _Block(hidden[turn.row], logits[turn.row], lists, {ROOT: turn})
            self._blocks[turn.request.slot] = block
        found: dict[int, Law | None] = {}
        others = []
        for turn in going:
            lists = self._blocks[turn.request.slot].lists
            if lists is None:
                others.append(turn)
            else:
                found[turn.request.slot] = lists.root(turn.previous_id)
        if others:
            rows = [turn.row for turn in others]
            laws = self.drafter.slot_laws(0, others, hidden[rows, 0], logits[rows, 0])
            found |= {turn.request.slot: law for turn, law in zip(others, laws, strict=True)}
        return [found.get(request.slot) for request in requests]

    @torch.no_grad()
    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """The slots after the nodes, those of one depth together; None beyond the block."""
        found: list[list[Law | None]] = [[None] * num for num in num_new]
        for tree, num in zip(trees, num_new, strict=True):
            self.went_down(tree.request.slot, 2 + int(tree.depths[tree.trunk[-num:]].max()))
        by_slot: defaultdict[int, list[tuple[int, int, Turn]]] = defaultdict(list)
        for index, (tree, num) in enumerate(zip(trees, num_new, strict=True)):
            block = self._blocks[tree.request.slot]
            if block.lists is not None:
                found[index] = self._listed(tree, num, block.lists, len(block.hidden))
                continue
            for place, node in enumerate(tree.trunk[-num:]):
                slot = int(tree.depths[node]) + 1
                if slot < len(block.hidden):
                    by_slot[slot].append((index, place, self._turn(tree, node, block)))
        for slot, asked in by_slot.items():
            blocks = [self._blocks[trees[index].request.slot] for index, _, _ in asked]
            hidden = torch.stack([block.hidden[slot] for block in blocks])
            logits = torch.stack([block.logits[slot] for block in blocks])
            laws = self.drafter.slot_laws(slot, [turn for _, _, turn in asked], hidden, logits)
            for (index, place, _), law in zip(asked, laws, strict=True):
                found[index][place] = law
        return found

    def grown(self, request: DraftRequest, law: Law, scores: NoiseScores, bounds: Bounds) -> Grown | None:
        """Where there are lists, and numba."""
        block, grow = self._blocks[request.slot], growing()
        noise = None if grow is None else noise_of(scores, len(request.context_ids))
        if block.lists is None or noise is None or not isinstance(law, Sparse):
            return None
        return Grown(*block.lists.grown(grow, noise, scores, bounds, law))

    def went_down(self, slot: int, depth: int) -> None:
        """So many slots were of use."""
        if (reach := self._reaches.get(slot)) is not None:
            reach.asked(depth)

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """Forgets the blocks."""
        self._blocks = {}

    def release(self, slot: int) -> None:
        """Forgets the slot's request."""
        super().release(slot)
        self._reaches.pop(slot, None)

    def _num_slots(self, request: DraftRequest) -> int:
        """How many slots a draft gets: of a request that asks what growing is worth as many as its drafts go deep."""
        most = self.drafter._num_tokens(request)
        if request.anticipating is None or most == 0:
            return most
        return min(most, self._reaches.setdefault(request.slot, _Reach(most)).next())

    def _lists(self, turn: Turn, logits: torch.Tensor) -> ShortLists | None:
        """logits [n, V]: of the turn's slots. None where a node's law is more than its slot's and its token's."""
        model, look, request = self.drafter.model, self.look, turn.request
        head = model.markov_head
        if look is None or head is None or head.kind != "vanilla":
            return None
        if model.domino is not None or model.candidate_selector is not None:
            return None
        ids = self.drafter.drawing.softmax_ids(turn, self.drafter.ends.vocab)
        if ids is None:
            return None
        values = np.ascontiguousarray(logits.float().cpu().numpy())
        if values.shape[1] != len(ids) or not np.isfinite(values.max()):
            return None
        if self._bias is None:
            self._bias = Bias(head)
        start, slot = len(request.context_ids), request.slot
        return ShortLists(
            values, ids, request.row_params.temperature, self._bias, lambda depth, some: look(slot, start + depth, some)
        )

    def _listed(self, tree: Growing, num_new: int, lists: ShortLists, num_slots: int) -> list[Law | None]:
        found: list[Law | None] = [None] * num_new
        by_slot: defaultdict[int, list[int]] = defaultdict(list)
        nodes = tree.trunk[-num_new:]
        for place, node in enumerate(nodes):
            by_slot[int(tree.depths[node]) + 1].append(place)
        for slot, places in by_slot.items():
            if slot < num_slots:
                laws = lists.after(slot, [int(tree.token_ids[nodes[place]]) for place in places])
                for place, law in zip(places, laws, strict=True):
                    found[place] = law
        return found

    def _turn(self, tree: Growing, node: int, block: _Block) -> Turn:
        """A turn whose draft is the node's path, with the state that its parent's law has left."""
        point = tree.point(node)
        turn = Turn(tree.request, len(block.hidden))
        path = [int(tree.token_ids[index]) for index in tree.path_to(node)]
        turn.draft = Draft.of_token_ids(len(tree.request.context_ids), path)
        turn.history, turn.grammar = point.history, point.grammar
        turn.state = block.turns[int(tree.parents[node])].state
        block.turns[node] = turn
        return turn
