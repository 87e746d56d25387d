"""The steps that change logits one by one: masks, bias, custom processors, penalties, DRY.

Rule: bias, processors, penalties and DRY in the preset's order; a masked token is -inf throughout, whatever is added
to it, multiplied or returned. So masks commute with everything but processors, which see them before they run.
In: logits [V], the row's parameters and its own history, the ids that are allowed. Out: the array itself if nothing is
set, else a new one; its own type.
Edge cases: what overflows is found by the chain's check, as an error and not as a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.sampling.allowed import Mask, only_allowed
from draftproof.sampling.bad_words import banned_ids
from draftproof.sampling.history import History
from draftproof.sampling.logit_bias import add_bias
from draftproof.sampling.min_tokens import too_short_to_end
from draftproof.sampling.no_repeat_ngram import repeating_ids
from draftproof.sampling.penalties import penalize, seen_in_request, seen_in_window
from draftproof.sampling.preset import Preset
from draftproof.sampling.row_params import RowParams
from draftproof.sampling.steps import Step


def processed(
    logits: NDArray[Any],
    row: RowParams,
    history: History,
    allowed_ids: NDArray[np.int64] | None,
    preset: Preset,
    steps: Sequence[Step],
) -> NDArray[Any]:
    """Logits [V] after every step before the temperature and the filters. allowed_ids: None for all.

    steps: those of `Plan.changes`.
    """
    masked = _masked_ids(row, history, preset)
    if not (steps or masked is not None or allowed_ids is not None):
        return logits
    logits = logits.copy() if allowed_ids is None else only_allowed(logits, allowed_ids)
    for step in steps:
        if step is Step.BIAS:
            add_bias(logits, row.bias_ids, row.biases)
        elif step is Step.DRY and row.dry is not None:
            row.dry.penalize(logits, history)
        elif step is Step.CUSTOM and row.processors is not None:
            if masked is not None:
                logits[masked] = -np.inf
            returned = row.processors.apply(torch.from_numpy(logits), history).numpy()
            returned[logits == -np.inf] = -np.inf
            logits = returned
        else:
            _penalize(logits, row, history, preset)
    if masked is not None:
        logits[masked] = -np.inf
    return logits


def allowed_mask(row: RowParams, history: History, mask: Mask | None, preset: Preset) -> Mask | None:
    """[vocab_size] which tokens the masks of `processed` leave to the row after `history`; None if all.

    mask: [>= vocab_size] the row's own, of a grammar.
    """
    masked = _masked_ids(row, history, preset)
    if masked is None and row.allowed_ids is None and mask is None:
        return None
    allowed = np.ones(row.vocab_size, dtype=np.bool_) if mask is None else mask[: row.vocab_size].copy()
    if row.allowed_ids is not None:
        allowed &= np.isin(np.arange(row.vocab_size), row.allowed_ids)
    if masked is not None:
        allowed[masked] = False
    return allowed


def _masked_ids(row: RowParams, history: History, preset: Preset) -> NDArray[np.int64] | None:
    found: list[NDArray[np.int64]] = []
    if too_short_to_end(history, row.min_tokens):
        found.append(row.ending_ids)
    if row.is_set("bad_words"):
        found.append(row.banned_ids)
        completing = banned_ids(history, row.banned_sequences, prompt=preset.bad_words_see_prompt)
        found.append(np.array(completing, dtype=np.int64))
    if row.no_repeat_ngram_size:
        repeating = repeating_ids(history, row.no_repeat_ngram_size)
        found.append(repeating[repeating < row.vocab_size])
    return np.concatenate(found) if found else None


def _penalize(logits: NDArray[Any], row: RowParams, history: History, preset: Preset) -> None:
    seen = seen_in_window(history, preset.penalty_window) if preset.windowed else seen_in_request(history)
    penalize(
        logits,
        *seen,
        repetition=row.repetition_penalty,
        frequency=row.frequency_penalty,
        presence=row.presence_penalty,
    )
