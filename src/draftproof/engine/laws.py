"""The target's laws of one draft: a row after the context and one after every drafted token.

Each row has a history and sampler states of its own, the drafts before it included, and a mask of its own where the
request constrains its text. A row that is no law keeps its place as a LawError with the request and the absolute
position: it ends the request only if an emitted token needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.core import Draft
from draftproof.engine.request import Request
from draftproof.errors import LawError
from draftproof.grammar import masks_of, with_grammar
from draftproof.sampling import Mask, SamplerChain, laws_along
from draftproof.verify.base import Row
from draftproof.when_asked import WhenAsked


class RowsOf(WhenAsked["Row"]):
    """See `laws_of`."""

    def __init__(
        self, request: Request, draft: Draft, rows: Sequence[Row], masks: Sequence[Mask | None] | None
    ) -> None:
        super().__init__(len(rows))
        self._request_id, self._draft, self._rows, self._masks = request.request_id, draft, rows, masks

    def _make(self, place: int) -> Row:
        row = self._rows[place]
        if not isinstance(row, LawError):
            return row
        position = self._draft.start + (self._draft.depths[place - 1] + 1 if place else 0)
        return _located(row, None if self._masks is None else self._masks[place]).at(self._request_id, position)


def laws_of(
    chain: SamplerChain,
    request: Request,
    draft: Draft,
    logits: torch.Tensor,
) -> RowsOf:
    """[1 + len(draft)] laws or errors, each made when it is asked for.

    logits: [1 + len(draft), >= V]; row 0 after the context, row i + 1 after node i.
    """
    masks = None if request.grammar is None else masks_of(request.grammar, draft)
    rows = laws_along(
        chain,
        logits,
        request.row_params,
        request.history,
        draft.token_ids,
        draft.parents,
        masks=masks,
        noise=request.noise,
    )
    return RowsOf(request, draft, rows, masks)


def _located(error: LawError, mask: Mask | None) -> LawError:
    return error if mask is None else with_grammar(error, mask)
