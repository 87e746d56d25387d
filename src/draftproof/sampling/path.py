"""The laws along a draft: a row after the context and one after every drafted token, each with its own path's state.

Rule: the history after a node is its parent's history and the node's token; where a sampler's state looks at the law
that a token came from (mirostat), a node's state needs its parent's law.
In: logits [1 + nodes, V], the history of the context, tokens and parents. Out: laws, or a LawError in a row's place.
Cost: a row is made when it is asked for, once. A verifier that walks down a tree asks for its path's.
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
from draftproof.when_asked import StatesAlong, WhenAsked


class LawsAlong(WhenAsked["Law | LawError"]):
    """See `laws_along`."""

    def __init__(
        self,
        chain: SamplerChain,
        logits: torch.Tensor,
        row: RowParams,
        history: History,
        token_ids: Sequence[int],
        parents: Sequence[int],
        masks: Sequence[Mask | None] | None,
        noise: Noise | None,
    ) -> None:
        super().__init__(1 + len(token_ids))
        self._chain, self._logits, self._params, self._noise = chain, logits, row, noise
        self._token_ids, self._parents, self._masks = token_ids, parents, masks
        self._needs_laws = history.needs_laws
        self._histories: StatesAlong[History | LawError] = StatesAlong(history, parents, self._after)

    def _make(self, place: int) -> Law | LawError:
        history = self._histories.at(place)
        if isinstance(history, LawError):
            return history
        mask = None if self._masks is None else self._masks[place]
        try:
            return self._chain.law(self._logits[place], self._params, history, mask=mask, noise=self._noise)
        except LawError as error:
            return LawError(f"row {place} of {len(self)}: {error.message}")

    def _after(self, history: History | LawError, node: int) -> History | LawError:
        law = self[self._parents[node] + 1] if self._needs_laws else None
        return _extended(history, self._token_ids[node], law)


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
) -> LawsAlong:
    """[1 + len(token_ids)] laws or errors, each made when it is asked for; row 0 after the context, row i + 1 after
    node i.

    logits: [1 + len(token_ids), >= V], not written to as long as rows are asked for. parents: of each node the index of
    an earlier one, -1 for the context. masks: one for each row, or None. noise: the request's, needed for XTC.
    """
    return LawsAlong(chain, logits, row, history, token_ids, parents, masks, noise)


def _extended(history: History | LawError, token_id: int, law: Law | LawError | None) -> History | LawError:
    if isinstance(history, LawError):
        return history
    if isinstance(law, LawError):
        return LawError(f"the row before it is no law: {law.message}")
    try:
        return history.extended((token_id,), None if law is None else (law,))
    except LawError as error:
        return error
