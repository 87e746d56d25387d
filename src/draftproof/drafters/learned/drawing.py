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
from dataclasses import dataclass

import numpy as np
import torch

from draftproof.core import Draft, Law, PointMass, Sparse
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.turn import Turn
from draftproof.drafters.sharpened import sharpened
from draftproof.errors import LawError
from draftproof.sampling import SamplerChain


@dataclass(slots=True)
class Drawing:
    """chain: the target's own. argmax_by_default: the table's first column."""

    chain: SamplerChain
    argmax_by_default: bool

    def laws(self, method: str, turns: Sequence[Turn], logits: torch.Tensor) -> list[Law | None]:
        """The law of each turn's next token, from logits [turns, >= V].

        None stands where masks and processors leave none of the drafter's.
        Raises LawError, which names the method, the slot and the position, for logits that are no numbers.
        """
        params = [turn.request.row_params for turn in turns]
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
