"""Laws for trees from a drafter that recycles its hidden states: EAGLE-3, MTP. A forward a round, over the new nodes.

The trunk's entries stand in the cache behind the context's, one column for each node in the order of expansion; a node
sees the context, its ancestors and itself, at the position of its depth, and reads the hidden state that its parent's
entry has left. What a draft writes there is overwritten by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from draftproof.core import ROOT, Draft, Law
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.turn import Turn
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.source import DrafterSource

if TYPE_CHECKING:
    from draftproof.drafters.learned.chain_drafter import ChainDrafter


class ChainSource(DrafterSource["ChainDrafter"]):
    """Laws of `drafter`, whose chains are not used, its cache and its way to a law are."""

    costs_passes = True

    def __init__(self, drafter: ChainDrafter) -> None:
        super().__init__(drafter)
        self._hidden: dict[int, dict[int, torch.Tensor]] = {}

    @torch.no_grad()
    def root_laws(self, requests: Sequence[DraftRequest]) -> list[Law | None]:
        """The forward over what the context has gained."""
        turns = [Turn(request, self.drafter._num_tokens(request)) for request in requests]
        going = [turn for turn in turns if not turn.is_done]
        self._hidden = {}
        if not going:
            return [None] * len(requests)
        self.drafter._read_context(going)
        self.drafter._score(going)
        for turn in going:
            if turn.hidden is not None:
                self._hidden[turn.request.slot] = {ROOT: turn.hidden}
        logits = torch.stack([turn.logits for turn in going if turn.logits is not None])
        by_slot = {turn.request.slot: law for turn, law in zip(going, self._laws(going, logits), strict=True)}
        return [by_slot.get(request.slot) for request in requests]

    @torch.no_grad()
    def laws_after(self, trees: Sequence[Growing], num_new: Sequence[int]) -> list[list[Law | None]]:
        """One forward over the new nodes of all trees."""
        width = max(num_new)
        begins = [len(tree.request.context_ids) - 1 for tree in trees]
        starts = [begin + len(tree.trunk) - num for begin, tree, num in zip(begins, trees, num_new, strict=True)]
        device, key_length = self.drafter.target.device, max(starts) + width
        token_ids = torch.zeros(len(trees), width, dtype=torch.long, device=device)
        positions = torch.zeros(len(trees), width, dtype=torch.long, device=device)
        seen = torch.zeros(len(trees), width, key_length, dtype=torch.bool, device=device)
        hidden: list[torch.Tensor] = []
        for row, (tree, num, begin) in enumerate(zip(trees, num_new, begins, strict=True)):
            column = {node: begin + index for index, node in enumerate(tree.trunk)}
            states = self._hidden[tree.request.slot]
            # A row's padding sees the context alone, and is overwritten.
            seen[row, :, :begin] = True
            own = tree.trunk[-num:]
            for place, node in enumerate(own):
                token_ids[row, place] = int(tree.token_ids[node])
                positions[row, place] = begin + int(tree.depths[node])
                seen[row, place, [column[above] for above in tree.path_to(node)]] = True
            parents = [states[int(tree.parents[node])] for node in own]
            hidden.append(torch.stack([*parents, *[parents[-1]] * (width - num)]))
        slots = [tree.request.slot for tree in trees]
        recycled, outputs = self.drafter._forward(slots, starts, token_ids, torch.stack(hidden), (positions, seen))
        turns, rows = [], []
        for row, (tree, num) in enumerate(zip(trees, num_new, strict=True)):
            for place, node in enumerate(tree.trunk[-num:]):
                self._hidden[tree.request.slot][node] = recycled[row, place]
                turns.append(_turn(tree, node))
                rows.append(outputs[row, place])
        found = iter(self._laws(turns, self.drafter.ends.logits(torch.stack(rows))))
        return [[next(found) for _ in range(num)] for num in num_new]

    def end_of_round(self, requests: Sequence[DraftRequest]) -> None:
        """Forgets the nodes' hidden states."""
        self._hidden = {}

    def _laws(self, turns: Sequence[Turn], logits: torch.Tensor) -> list[Law | None]:
        """logits: [turns, D], of the drafter's tokens."""
        drafter = self.drafter
        return drafter.drawing.laws(self.method, turns, logits, vocab=drafter.ends.vocab, listed=True)


def _turn(tree: Growing, node: int) -> Turn:
    """A turn whose draft is the node's path."""
    point = tree.point(node)
    turn = Turn(tree.request, tree.request.num_tokens)
    path = [int(tree.token_ids[index]) for index in tree.path_to(node)]
    turn.draft = Draft.of_token_ids(len(tree.request.context_ids), path)
    turn.history, turn.grammar = point.history, point.grammar
    return turn
