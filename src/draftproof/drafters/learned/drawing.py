"""From a learned drafter's logits to a token: the law, and how it is drawn from.

| verifier | v1 block drafters (slots don't see each other) | dspark, dflash 2, mtp, eagle3 |
|---|---|---|
| accepts shared noise (keyed) | argmax(log q + ζ·G), G the target's field, ζ = 1 / law_power | the same |
| others, law_power 1 | argmax, as a point mass | a draw from q |
| others, another law_power | a draw from q^law_power | a draw from q^law_power |

Slots of a v1 block that are sampled one by one don't fit together, so a sample loses more than its law gains
(z-lab/dflash #169: 1.16 accepted tokens a step against 2.96 by argmax). At temperature 0 every law is a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.core import Dense, Draft, Law, PointMass, Sparse
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.turn import Turn
from draftproof.drafters.learned.vocab import VocabMap
from draftproof.drafters.sharpened import sharpened
from draftproof.errors import LawError
from draftproof.sampling import SamplerChain
from draftproof.sampling.row_params import RowParams

_SPARSE_BELOW: Final = 8


@dataclass(slots=True)
class Drawing:
    """chain: the target's own. argmax_by_default: the table's first column."""

    chain: SamplerChain
    argmax_by_default: bool
    _narrow: WeakKeyDictionary[RowParams, RowParams | None] = field(default_factory=WeakKeyDictionary, init=False)

    def laws(
        self,
        method: str,
        turns: Sequence[Turn],
        logits: torch.Tensor,
        vocab: VocabMap | None = None,
        *,
        listed: bool = False,
    ) -> list[Law | None]:
        """The law of each turn's next token, from logits [turns, >= V], or [turns, D] of the tokens of `vocab`.

        listed: it may stay a list of these D, which a tree ranks sooner than the whole vocabulary.
        None stands where masks and processors leave none of the drafter's.
        Raises LawError, which names the method, the slot and the position, for logits that are no numbers.
        """
        if vocab is None:
            return self._laws(method, turns, [turn.request.row_params for turn in turns], logits)
        ids, narrow = vocab.ascending_ids, [self._narrowed(turn, vocab) for turn in turns]
        if ids is None or not all(narrow):
            return self._laws(method, turns, [turn.request.row_params for turn in turns], vocab.expand(logits))
        laws = self._laws(method, turns, [params for params in narrow if params is not None], logits)
        sizes = [turn.request.row_params.vocab_size for turn in turns]
        found = zip(laws, sizes, strict=True)
        return [None if law is None else _renamed(law, ids, size, listed) for law, size in found]

    def softmax_ids(self, turn: Turn, vocab: VocabMap | None) -> NDArray[np.int64] | None:
        """[D] the drafter's tokens, where the law over them is a softmax at the request's temperature and no more."""
        params = turn.request.row_params
        if turn.grammar is not None or params.temperature == 0.0 or not self.chain.is_softmax(params):
            return None
        if vocab is None:
            return np.arange(params.vocab_size)
        return vocab.ascending_ids if self._narrowed(turn, vocab) is not None else None

    def _narrowed(self, turn: Turn, vocab: VocabMap) -> RowParams | None:
        """The request's parameters for the drafter's tokens alone, where the law that they give is the same."""
        params, ids = turn.request.row_params, vocab.ascending_ids
        if turn.grammar is not None or ids is None:
            return None
        if params not in self._narrow:
            fits = self.chain.is_blind_to_ids(params) and int(ids[-1]) < params.vocab_size
            self._narrow[params] = replace(params, vocab_size=len(ids)) if fits else None
        return self._narrow[params]

    def _laws(
        self, method: str, turns: Sequence[Turn], params: Sequence[RowParams], logits: torch.Tensor
    ) -> list[Law | None]:
        histories, noise = [turn.history for turn in turns], [turn.request.noise for turn in turns]
        masks = [None if turn.grammar is None else turn.grammar.mask for turn in turns]
        found: list[Law | None] = []
        rows = self.chain.laws(logits, params, histories, masks=masks, noise=noise, errors="return")
        for row, (turn, law) in enumerate(zip(turns, rows, strict=True)):
            if not isinstance(law, LawError):
                found.append(law)
                continue
            # Otherwise it is the request's masks and processors, of which the target's rows will tell.
            if bool(logits[row].isnan().any()) or not bool(torch.isfinite(logits[row]).any()):
                where = turn.draft.start + len(turn.draft)
                raise LawError(f"drafter {method}, slot {turn.request.slot}: {law.message}", position=where)
            found.append(None)
        return found

    def draw(self, draft: Draft, law: Law, request: DraftRequest) -> Draft:
        """The draft and one more token."""
        if self.argmax_by_default and not request.share_target_field and request.law_power == 1.0:
            law = PointMass(law.argmax())
        law = sharpened(law, request.law_power)
        return draft.draw(law, request.noise, share_target_field=request.share_target_field)


def _renamed(law: Law, ids: NDArray[np.int64], size: int, listed: bool) -> Law:
    """Over the target's `size` tokens. ids [D]: the target's, of the tokens 0 … D - 1 that the law is over. listed: as
    in `laws`."""
    if isinstance(law, PointMass):
        return PointMass(int(ids[law.token_id]))
    probs, token_ids = law.weights()
    renamed = Sparse(ids if token_ids is None else ids[token_ids], probs)
    # As the chain does: a race over many tokens is quicker where they lie side by side.
    return renamed if listed or _SPARSE_BELOW * len(probs) <= size else Dense(renamed.at(None, size))


def candidate_law(turn: Turn, scores: torch.Tensor, token_ids: torch.Tensor) -> Law:
    """Softmax of scores [K] at the request's temperature over ascending token_ids [K]."""
    values = scores.detach().to(device="cpu", dtype=torch.float64).numpy()
    ids = token_ids.to("cpu").numpy()
    if not np.isfinite(values).all():
        raise LawError(
            f"drafter dflash, slot {turn.request.slot}: the candidates' scores hold NaN or infinity",
            position=turn.draft.start + len(turn.draft),
        )
    temperature = turn.request.row_params.temperature
    if temperature == 0.0:
        return PointMass(int(ids[int(values.argmax())]))
    weights = np.exp((values - values.max()) / temperature)
    return Sparse(ids, weights / weights.sum())
