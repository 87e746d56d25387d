"""The steps that look at the whole row and drop tokens, the temperature among them.

Rule: in the preset's order; each filter sees what the one before it left, at the temperature if that came before.
In: logits [V] after masks and penalties, their maximum, the row's parameters, history and noise, the ids that are
allowed. Out: the Law.
Edge cases: a dynamic temperature of 0 is the point mass at the largest logit that is left, the lowest id on ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.core import Key, Law, Noise, PointMass, Purpose
from draftproof.sampling import cutoffs, min_p, top_k, top_n_sigma, top_p, top_p_head, typical_p, xtc
from draftproof.sampling.dynatemp import dynamic_temperature
from draftproof.sampling.history import History
from draftproof.sampling.mirostat import Mirostat
from draftproof.sampling.preset import Preset
from draftproof.sampling.row_params import RowParams
from draftproof.sampling.steps import Step
from draftproof.sampling.survivors import Survivors
from draftproof.sampling.to_law import law_of_all, law_of_some


def filtered(
    logits: NDArray[Any],
    max_logit: Any,
    row: RowParams,
    history: History,
    noise: Noise | None,
    ids: NDArray[np.int64] | None,
    preset: Preset,
    steps: Sequence[Step],
) -> Law:
    """The law of what `steps` leave of `logits` [V], of which only those at `ids` (None: all) are looked at."""
    left = Survivors(logits if ids is None else logits[ids], max_logit)
    for step in steps:
        if step is Step.TEMPERATURE:
            if _set_temperature(left, row):
                continue
            best = int(np.argmax(left.logits))
            return PointMass(best if ids is None else int(ids[best]))
        kept = _kept(step, left, row, history, noise, preset)
        if kept is not None:
            ids = kept if ids is None else ids[kept]
            left.keep(kept)
    weights = left.weights()
    return law_of_all(weights) if ids is None else law_of_some(ids, weights, row.vocab_size)


def _set_temperature(left: Survivors, row: RowParams) -> bool:
    """Whether there is one above 0."""
    temperature = row.temperature
    if row.dynatemp_range:
        temperature = dynamic_temperature(
            left.scores(), left.weights(), temperature, row.dynatemp_range, row.dynatemp_exponent
        )
    if temperature > 0.0:
        left.temperature = temperature
    return temperature > 0.0


def _kept(
    step: Step, left: Survivors, row: RowParams, history: History, noise: Noise | None, preset: Preset
) -> NDArray[np.int64] | None:
    """[<= K] ascending indices into what is left; None for all."""
    if step is Step.TOP_K:
        return top_k.top_k(left.logits, row.top_k, preset.top_k_ties)
    if step is Step.MIN_P:
        near = left.near(math.log(row.min_p))
        if near is None:
            return np.flatnonzero(min_p.keeps(left.scores(), row.min_p))
        return near[min_p.keeps(left.scores_at(near), row.min_p)]
    if step is Step.TOP_P:
        kept = top_p_head.top_p_head(left, row.top_p, preset.top_p_ties)
        if kept is None:
            kept = top_p.top_p(left.weights(), float(left.weights().sum()), row.top_p, preset.top_p_ties)
        return kept
    if step is Step.TOP_N_SIGMA:
        return np.flatnonzero(top_n_sigma.keeps(left.logits, row.top_n_sigma))
    if step is Step.TYPICAL_P:
        return typical_p.typical_p(left.scores(), left.weights(), row.typical_p, preset.typical_ties)
    if step is Step.EPSILON:
        return np.flatnonzero(cutoffs.epsilon_keeps(left.weights(), row.epsilon_cutoff))
    if step is Step.ETA:
        return np.flatnonzero(cutoffs.eta_keeps(left.scores(), left.weights(), row.eta_cutoff))
    if step is Step.XTC:
        excluded = xtc.excluded(left.weights(), row.xtc_threshold, preset.xtc_ties)
        if excluded is None or noise is None:
            return None
        falls = noise.coin(Key(Purpose.XTC, len(history)), row.xtc_probability)
        return np.flatnonzero(~excluded) if falls else None
    state = next(state for state in history.states if isinstance(state, Mirostat))
    return state.keeps(left.scores(), left.weights(), row.vocab_size)
