"""The target's laws of one draft: a row after the context and one after every drafted token.

Each row has a history and sampler states of its own, the drafts before it included, and a mask of its own where the
request constrains its text. A row that is no law keeps its place as a LawError with the request and the absolute
position: it ends the request only if an emitted token needs it.
"""

from __future__ import annotations

import torch

from draftproof.core import Draft
from draftproof.engine.request import Request
from draftproof.errors import LawError
from draftproof.grammar import masks_of, with_grammar
from draftproof.sampling import Mask, SamplerChain, laws_along
from draftproof.verify.base import Row


def laws_of(
    chain: SamplerChain,
    request: Request,
    draft: Draft,
    logits: torch.Tensor,
) -> list[Row]:
    """[1 + len(draft)] laws or errors.

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
    depths = (0, *(depth + 1 for depth in draft.depths))
    return [
        _located(row, None if masks is None else masks[index]).at(request.request_id, draft.start + depth)
        if isinstance(row, LawError)
        else row
        for index, (row, depth) in enumerate(zip(rows, depths, strict=True))
    ]


def _located(error: LawError, mask: Mask | None) -> LawError:
    return error if mask is None else with_grammar(error, mask)
