"""The laws along a draft: a row after the context and one after every drafted token, each with its own path's state.

Rule: the history after a node is its parent's history and the node's token; where a sampler's state looks at the law
that a token came from (mirostat), rows are made in the draft's order, since a node's state needs its parent's law.
In: logits [1 + nodes, V], the history of the context, tokens and parents. Out: laws, or a LawError in a row's place.
Edge cases: a row below a token that its law can't give, or below a row that is no law, has a LawError: no emitted
token can need it. Nothing here changes the context's own history, so a rejected run leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.core import Law, Noise
from draftproof.errors import LawError
from draftproof.sampling.allowed import Mask
from draftproof.sampling.chain import SamplerChain
from draftproof.sampling.history import History
from draftproof.sampling.row_params import RowParams


def laws_along(
    chain: SamplerChain,
    logits: torch.Tensor,
    row: RowParams,
    history: History,
    token_ids: Sequence[int],
    parents: Sequence[int],
    *,
    masks: Sequence[Mask | None] | None = None,
    noise: Noise | None = None,
) -> list[Law | LawError]:
    """[1 + len(token_ids)] laws or errors; row 0 after the context, row i + 1 after node i.

    logits: [1 + len(token_ids), >= V]. parents: of each node the index of an earlier one, -1 for the context.
    masks: one for each row, or None. noise: the request's, needed for XTC.
    """
    histories: list[History | LawError] = [history]
    found: dict[int, Law | LawError] = {}

    def make(indices: Sequence[int]) -> None:
        good = [index for index in indices if isinstance(histories[index], History)]
        given = [item for index in good if isinstance(item := histories[index], History)]
        if good:
            # A slice is a view; a list of indices would copy the rows.
            picked = logits[good[0] : good[-1] + 1] if len(good) == good[-1] - good[0] + 1 else logits[good]
            row_masks = None if masks is None else [masks[index] for index in good]
            laws = chain.laws(picked, row, given, masks=row_masks, noise=noise, errors="return")
            found.update(zip(good, laws, strict=True))
        found.update((index, item) for index in indices if isinstance(item := histories[index], LawError))

    one_by_one = history.needs_laws
    if one_by_one:
        make([0])
    for node, (token_id, parent) in enumerate(zip(token_ids, parents, strict=True)):
        histories.append(_extended(histories[parent + 1], token_id, found[parent + 1] if one_by_one else None))
        if one_by_one:
            make([node + 1])
    if not one_by_one:
        make(range(len(histories)))
    return [found[index] for index in range(len(histories))]


def _extended(history: History | LawError, token_id: int, law: Law | LawError | None) -> History | LawError:
    if isinstance(history, LawError):
        return history
    if isinstance(law, LawError):
        return LawError(f"the row before it is no law: {law.message}")
    try:
        return history.extended((token_id,), None if law is None else (law,))
    except LawError as error:
        return error
