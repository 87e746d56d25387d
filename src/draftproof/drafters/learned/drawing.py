"""From a learned drafter's logits to a token: the law, and how it is drawn from.

| verifier | v1 block drafters (slots don't see each other) | dspark, dflash 2, mtp, eagle3 |
|---|---|---|
| accepts shared noise (keyed) | argmax(log q + G) with the target's field G | the same |
| others | argmax, as a point mass; with `sharpness` a draw from q^sharpness | a draw from q, or from q^sharpness |

Slots of a v1 block that are sampled one by one don't fit together, so a sample loses more than its law gains
(z-lab/dflash #169: 1.16 accepted tokens a step against 2.96 by argmax).
At temperature 0 every law is a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftproof.core import Dense, Draft, Law, PointMass, Sparse
from draftproof.drafters.base import DraftRequest
from draftproof.errors import LawError
from draftproof.sampling import History, SamplerChain


@dataclass(slots=True)
class Drawing:
    """chain: the target's own. sharpness: None for the table's default, else the power that laws are raised to where
    noise isn't shared. argmax_by_default: the table's first column."""

    chain: SamplerChain
    argmax_by_default: bool
    sharpness: float | None = None

    def laws(
        self,
        method: str,
        requests: Sequence[DraftRequest],
        drafts: Sequence[Draft],
        histories: Sequence[History],
        logits: torch.Tensor,
        *,
        reduced: bool,
    ) -> list[Law | None]:
        """The law of each row of logits [rows, >= V].

        reduced: the drafter lacks some tokens; then None stands where the request's masks leave none of its own.
        Raises LawError, which names the method, the slot and the position.
        """
        params = [request.row_params for request in requests]
        noise = [request.noise for request in requests]
        found: list[Law | None] = []
        for row, law in enumerate(self.chain.laws(logits, params, histories, noise=noise, errors="return")):
            if isinstance(law, LawError):
                lacking = reduced and bool(torch.isfinite(logits[row]).any()) and not bool(logits[row].isnan().any())
                if not lacking:
                    raise LawError(
                        f"drafter {method}, slot {requests[row].slot}: {law.message}",
                        position=drafts[row].start + len(drafts[row]),
                    )
                found.append(None)
            else:
                found.append(law)
        return found

    def draw(self, draft: Draft, law: Law, request: DraftRequest) -> Draft:
        """The draft and one more token."""
        if not request.share_target_field:
            if self.sharpness is not None:
                law = sharpened(law, self.sharpness)
            elif self.argmax_by_default:
                law = PointMass(law.argmax())
        return draft.draw(law, request.noise, share_target_field=request.share_target_field)


def sharpened(law: Law, power: float) -> Law:
    """The law in proportion to q^power; the same support."""
    if isinstance(law, PointMass) or power == 1.0:
        return law
    values, token_ids = law.weights()
    weights = np.power(values / values.max(), power)
    weights /= weights.sum()
    return Dense(weights) if token_ids is None else Sparse(token_ids, weights)


def candidate_law(request: DraftRequest, draft: Draft, scores: torch.Tensor, token_ids: torch.Tensor) -> Law:
    """Softmax of scores [K] at the request's temperature over ascending token_ids [K]."""
    values = scores.detach().to(device="cpu", dtype=torch.float64).numpy()
    ids = token_ids.to("cpu").numpy()
    if not np.isfinite(values).all():
        raise LawError(
            f"drafter dflash, slot {request.slot}: the candidates' scores hold NaN or infinity",
            position=draft.start + len(draft),
        )
    temperature = request.row_params.temperature
    if temperature == 0.0:
        return PointMass(int(ids[int(values.argmax())]))
    weights = np.exp((values - values.max()) / temperature)
    return Sparse(ids, weights / weights.sum())
