"""The target's laws of one draft: a row after the context and one after every drafted token.

Each row has a history of its own, the drafts before it included, and a mask of its own where the
request constrains its text. A row that is no law keeps its place as a LawError with the request and
the absolute position: it ends the request only if an emitted token needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.core import Draft
from draftproof.engine.request import Request
from draftproof.errors import LawError
from draftproof.grammar import masks_of, with_grammar
from draftproof.sampling import Mask, SamplerChain
from draftproof.verify.base import Row


def laws_of(
    chain: SamplerChain,
    request: Request,
    draft: Draft,
    logits: torch.Tensor,
    masks: Sequence[Mask | None] | None = None,
) -> list[Row]:
    """[1 + len(draft)] laws or errors.

    logits: [1 + len(draft), >= V]; row 0 after the context, row i + 1 after node i.
    """
    masks = None if request.grammar is None else masks_of(request.grammar, draft)
    histories = [request.history]
    for node, token_id in enumerate(draft.token_ids):
        histories.append(histories[draft.parents[node] + 1].extended((token_id,)))
    rows = chain.laws(logits, request.row_params, histories, masks=masks, errors="return")
    depths = (0, *(depth + 1 for depth in draft.depths))
    return [
        _located(row, None if masks is None else masks[index]).at(request.request_id, draft.start + depth)
        if isinstance(row, LawError)
        else row
        for index, (row, depth) in enumerate(zip(rows, depths, strict=True))
    ]


def _located(error: LawError, mask: Mask | None) -> LawError:
    return error if mask is None else with_grammar(error, mask)
