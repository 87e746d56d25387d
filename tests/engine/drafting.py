"""A drafter for tests that draws chains from a table's law, through the public way of drafting."""

from __future__ import annotations

from draftproof.core import Draft


class TableDrafter:
    """Draws from `table` at each node; `off_by` leaves that many tokens undrafted at times, to vary lengths."""

    method = "draft_model"
    proposes_without_confidence = True

    def __init__(self, table, ragged=True):
        self.table, self.ragged = table, ragged
        self.num_observed, self.released = 0, []

    def propose(self, requests):
        return [self._propose(request) for request in requests]

    def _propose(self, request):
        draft = Draft.empty(len(request.context_ids))
        length = request.num_tokens
        if self.ragged:
            length = min(length, 1 + len(request.context_ids) % 4)
        context = tuple(request.context_ids)
        for _ in range(length):
            law = self.table.law((*context, *draft.token_ids))
            draft = draft.draw(law, request.noise, share_target_field=request.share_target_field)
        return draft

    def observe(self, slot, context_ids, verdict):
        self.num_observed += 1

    def release(self, slot):
        self.released.append(slot)

    def confidence(self, slot, context_ids):
        return None


class TreeDrafter(TableDrafter):
    """Trees of point masses: at each level the two most probable tokens of the first branch's law."""

    def _propose(self, request):
        context, token_ids, parents, spine = tuple(request.context_ids), [], [], -1
        for _ in range(min(request.num_tokens // 2, 3)):
            path = [token_ids[node] for node in self._path(parents, spine)]
            probs = self.table.probs((*context, *path))
            best = sorted(range(len(probs)), key=lambda token_id: (-probs[token_id], token_id))[:2]
            token_ids += best
            parents += [spine, spine]
            spine = len(token_ids) - 1 - len(context) % 2
        return Draft.of_token_ids(len(context), token_ids, parents)

    @staticmethod
    def _path(parents, node):
        path = []
        while node != -1:
            path.append(node)
            node = parents[node]
        return path[::-1]
