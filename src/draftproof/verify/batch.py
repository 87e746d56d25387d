"""Verification of many requests at once, with draft lengths that differ; one request's error stays its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Draft, Noise, Verdict
from draftproof.errors import DraftContractError, LawError, ParameterError
from draftproof.verify.base import Row, Verifier

PADDING: Final = -1
"""What fills `BatchVerdict.token_ids` beyond the emitted tokens. No token has this id."""

Result: TypeAlias = Verdict | LawError | DraftContractError


@dataclass(frozen=True, slots=True, eq=False)
class BatchVerdict:
    """What a verifier decided about B drafts.

    token_ids: int64 [B, deepest draft + 1], the emitted tokens, PADDING beyond them.
    num_accepted: int64 [B], the commit signal: emitted tokens less one. 0 for a request that failed, whose row of
        token_ids is all PADDING.
    results: for each request its Verdict, or the error that it failed with.
    """

    token_ids: NDArray[np.int64]
    num_accepted: NDArray[np.int64]
    results: tuple[Result, ...]

    def __len__(self) -> int:
        return len(self.results)


def verify_batch(
    verifier: Verifier,
    drafts: Sequence[Draft],
    target_laws: Sequence[Sequence[Row]],
    noises: Sequence[Noise],
    *,
    telemetry: bool = False,
) -> BatchVerdict:
    """Verifies one draft for each request, each as `verifier.verify` would alone.

    drafts: [B], of any lengths, 0 included. target_laws: [B], each len(draft) + 1 rows. noises: [B].
    Raises ParameterError if the three have different lengths, or a request has the wrong number of rows.
    """
    if not len(drafts) == len(target_laws) == len(noises):
        raise ParameterError(
            "drafts, target_laws, noises",
            (len(drafts), len(target_laws), len(noises)),
            "of one length",
            "give one of each for every request",
        )
    results: list[Result] = []
    for draft, laws, noise in zip(drafts, target_laws, noises, strict=True):
        try:
            results.append(verifier.verify(draft, laws, noise, telemetry=telemetry))
        except (LawError, DraftContractError) as error:
            results.append(error)
    width = 1 + max((max(draft.depths) + 1 if len(draft) else 0 for draft in drafts), default=0)
    token_ids = np.full((len(drafts), width), PADDING, dtype=np.int64)
    num_accepted = np.zeros(len(drafts), dtype=np.int64)
    for index, result in enumerate(results):
        if isinstance(result, Verdict):
            token_ids[index, : len(result.token_ids)] = result.token_ids
            num_accepted[index] = result.num_accepted
    return BatchVerdict(token_ids, num_accepted, tuple(results))
