"""The sampler chain: from a row of logits and that row's history to the law that tokens are drawn from.

Rule: law = filters(temperature(penalties(masks(logits, history)))), in the preset's order.
In: logits [rows, V] of any float type on any device, parameters and a History for each row.
Out: a Law for each row: PointMass at T = 0 or where one token is left, Sparse where at most an eighth
of the vocabulary is left by masks and filters, Dense otherwise; filtered tokens have probability 0.
A row's law is a function of that row, its parameters and its history alone: rows are computed one by
one, by the same calls on the same data, whatever else is in the batch; so are their bits.
Computed on the host in float32, or in float64 on request, whatever the logits' device, so that
every device keeps the same set.
Edge cases: NaN, +inf, or no token left raise LawError, which `errors="return"` puts in the row's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.core import Law, PointMass
from draftproof.errors import LawError, ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import min_p, top_k, top_p
from draftproof.sampling.allowed import Mask, only_allowed, open_ids
from draftproof.sampling.bad_words import banned_ids
from draftproof.sampling.history import History
from draftproof.sampling.logit_bias import add_bias
from draftproof.sampling.min_tokens import too_short_to_end
from draftproof.sampling.penalties import penalize, seen_in_request, seen_in_window
from draftproof.sampling.presets import FILTERS, PRESETS, Preset, Step
from draftproof.sampling.row_params import RowParams, resolve
from draftproof.sampling.survivors import Survivors
from draftproof.sampling.to_law import finite_max, law_of_all, law_of_some

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}
_ENGINES_WINDOW: Final = "engine"


class SamplerChain:
    """Turns logits into laws by the rules of one preset. Immutable and stateless.

    preset: "vllm", "hf", "llama.cpp" or "mlx". dtype: "float32" or "float64", of the arithmetic and of
    the probabilities. penalty_window: how many last tokens llama.cpp's and mlx's penalties look at,
    None for all; the engine's default (64, 20) if not given, and refused under the other presets.
    """

    __slots__ = ("dtype", "preset")
    dtype: str
    preset: Preset

    def __init__(
        self, preset: str = "vllm", dtype: str = "float32", *, penalty_window: int | None | str = _ENGINES_WINDOW
    ) -> None:
        if preset not in PRESETS:
            raise ParameterError("preset", preset, f"one of {', '.join(PRESETS)}")
        if dtype not in _DTYPES:
            raise ParameterError("dtype", dtype, f"one of {', '.join(_DTYPES)}")
        chosen = PRESETS[preset]
        if penalty_window != _ENGINES_WINDOW:
            if not chosen.windowed:
                raise ParameterError("penalty_window", penalty_window, f"left out under the preset {preset!r}")
            if penalty_window is not None and (
                isinstance(penalty_window, (bool, str)) or not isinstance(penalty_window, int) or penalty_window < 1
            ):
                raise ParameterError(
                    "penalty_window", penalty_window, "an integer of 1 or more, or None for all tokens"
                )
            chosen = replace(chosen, penalty_window=penalty_window)
        self.preset, self.dtype = chosen, dtype

    def describe(self) -> str:
        """The chain as text: order, ties, defaults, type."""
        return f"{self.preset.describe()}\ncomputed in {self.dtype}"

    __str__ = describe

    def __repr__(self) -> str:
        return f"SamplerChain(preset={self.preset.name!r}, dtype={self.dtype!r})"

    def resolve(
        self, params: SamplingParams, tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int] = ()
    ) -> RowParams:
        """`resolve`, and a check that this preset's engine has every parameter that is set."""
        row = resolve(params, tokenizer, vocab_size, eos_token_ids)
        self.preset.check(row)
        return row

    @overload
    def laws(
        self,
        logits: torch.Tensor,
        params: RowParams | Sequence[RowParams],
        histories: Sequence[History],
        *,
        masks: Sequence[Mask | None] | None = None,
        errors: Literal["raise"] = "raise",
    ) -> list[Law]: ...

    @overload
    def laws(
        self,
        logits: torch.Tensor,
        params: RowParams | Sequence[RowParams],
        histories: Sequence[History],
        *,
        masks: Sequence[Mask | None] | None = None,
        errors: Literal["return"],
    ) -> list[Law | LawError]: ...

    def laws(
        self,
        logits: torch.Tensor,
        params: RowParams | Sequence[RowParams],
        histories: Sequence[History],
        *,
        masks: Sequence[Mask | None] | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Law] | list[Law | LawError]:
        """The law of each row.

        logits: [rows, >= V]; columns beyond a row's vocab_size are cut off. params: one for all rows, or one
        for each. histories: one for each row, drafts before the row included. masks: one [>= V] for each row,
        True = allowed, or None for a row that allows every token. errors: "raise" raises the first row's
        LawError, "return" puts it in that row's place and goes on.
        """
        if errors not in ("raise", "return"):
            raise ParameterError("errors", errors, "'raise' or 'return'")
        params = [params] * len(histories) if isinstance(params, RowParams) else list(params)
        rows = self._rows(logits, params, histories)
        row_masks = _masks(masks, params)
        found: list[Law | LawError] = []
        for index, (row, row_params, history, mask) in enumerate(zip(rows, params, histories, row_masks, strict=True)):
            try:
                found.append(self._law(row[: row_params.vocab_size], row_params, history, mask))
            except LawError as error:
                located = LawError(f"row {index} of {len(rows)}: {error.message}")
                if errors == "raise":
                    raise located from None
                found.append(located)
        return found

    def probs(
        self, logits: torch.Tensor, params: RowParams | Sequence[RowParams], histories: Sequence[History]
    ) -> torch.Tensor:
        """[rows, V] probabilities in the chain's type, on the logits' device. Rows share one vocab_size."""
        laws = self.laws(logits, params, histories)
        sizes = {params.vocab_size} if isinstance(params, RowParams) else {row.vocab_size for row in params}
        if len(sizes) > 1:
            raise ParameterError("vocab_size", sorted(sizes), "one size for all rows", "ask for laws instead")
        size = sizes.pop() if sizes else logits.shape[-1]
        table = np.zeros((len(laws), size), dtype=self.dtype)
        for row, law in zip(table, laws, strict=True):
            row[:] = law.at(None, size)
        return torch.from_numpy(table).to(logits.device)

    def _rows(self, logits: torch.Tensor, params: Sequence[RowParams], histories: Sequence[History]) -> NDArray[Any]:
        if logits.ndim != 2 or not logits.is_floating_point():
            raise ParameterError(
                "logits", f"{logits.dtype} of shape {tuple(logits.shape)}", "floats [rows, vocabulary]"
            )
        if not logits.shape[0] == len(params) == len(histories):
            counts = f"{logits.shape[0]} rows, {len(params)} params, {len(histories)} histories"
            raise ParameterError("rows", counts, "as many of each")
        for row in {id(row): row for row in params}.values():
            if row.vocab_size > logits.shape[1]:
                raise ParameterError(
                    "logits", f"{logits.shape[1]} columns", f"at least vocab_size={row.vocab_size} wide"
                )
            self.preset.check(row)
        rows: NDArray[Any] = logits.detach().to(device="cpu", dtype=_DTYPES[self.dtype]).contiguous().numpy()
        return rows

    def _law(self, logits: NDArray[Any], row: RowParams, history: History, mask: Mask | None) -> Law:
        # Masks overwrite, so the model's own row is looked at first.
        max_logit = finite_max(logits, "as the model gave it")
        allowed_ids = open_ids(row.allowed_ids, mask)
        processed = self._processed(logits, row, history, allowed_ids)
        if processed is not logits:
            logits, max_logit = processed, finite_max(processed, "after masks and penalties")
        if row.temperature == 0.0:
            return PointMass(int(np.argmax(logits)))
        filters = [step for step in self.preset.order if step in FILTERS and row.is_set(step.name.lower())]
        return self._filtered(logits, max_logit, row, filters, allowed_ids)

    def _processed(
        self, logits: NDArray[Any], row: RowParams, history: History, allowed_ids: NDArray[np.int64] | None
    ) -> NDArray[Any]:
        """Logits [V] after masks, bias and penalties; the array itself if there are none, else a new one."""
        masked_ids: list[NDArray[np.int64]] = []
        penalized = any(row.is_set(f"{name}_penalty") for name in ("repetition", "frequency", "presence"))
        if too_short_to_end(history, row.min_tokens):
            masked_ids.append(row.ending_ids)
        if row.is_set("bad_words"):
            masked_ids.append(row.banned_ids)
            completing = banned_ids(history, row.banned_sequences, prompt=self.preset.bad_words_see_prompt)
            masked_ids.append(np.array(completing, dtype=np.int64))
        if not (masked_ids or penalized or len(row.bias_ids) or allowed_ids is not None):
            return logits
        # A mask is -inf whatever is added or multiplied later, so masks commute with bias and penalties.
        logits = logits.copy() if allowed_ids is None else only_allowed(logits, allowed_ids)
        # What overflows here is found by finite_max, as an error and not as a warning.
        with np.errstate(all="ignore"):
            if len(row.bias_ids):
                add_bias(logits, row.bias_ids, row.biases)
            if penalized:
                self._penalize(logits, row, history)
        for ids in masked_ids:
            logits[ids] = -np.inf
        return logits

    def _penalize(self, logits: NDArray[Any], row: RowParams, history: History) -> None:
        window = self.preset.penalty_window
        seen = seen_in_window(history, window) if self.preset.windowed else seen_in_request(history)
        penalize(
            logits,
            *seen,
            repetition=row.repetition_penalty,
            frequency=row.frequency_penalty,
            presence=row.presence_penalty,
        )

    def _filtered(
        self,
        logits: NDArray[Any],
        max_logit: Any,
        row: RowParams,
        filters: Sequence[Step],
        ids: NDArray[np.int64] | None,
    ) -> Law:
        """The law of what `filters` leave of `logits` [V], of which only those at `ids` (None: all) are looked at."""
        left = Survivors(logits if ids is None else logits[ids], max_logit)
        filter_temperature = row.temperature if self.preset.temperature_first else 1.0
        for step in filters:
            kept: NDArray[Any]
            if step is Step.TOP_K:
                kept = top_k.top_k(left.logits, row.top_k, self.preset.top_k_ties)
            elif step is Step.MIN_P:
                kept = np.flatnonzero(min_p.keeps(left.scores(filter_temperature), row.min_p))
            else:
                weights = left.weights(filter_temperature)
                kept = top_p.top_p(weights, float(weights.sum()), row.top_p, self.preset.top_p_ties)
            ids = kept if ids is None else ids[kept]
            left.keep(kept)
        weights = left.weights(row.temperature)
        return law_of_all(weights) if ids is None else law_of_some(ids, weights, row.vocab_size)


def _masks(masks: Sequence[Mask | None] | None, params: Sequence[RowParams]) -> list[Mask | None]:
    """One mask [V] or None for each row; wider ones are cut off as logits are."""
    if masks is None:
        return [None] * len(params)
    if len(masks) != len(params):
        raise ParameterError("masks", f"{len(masks)} for {len(params)} rows", "one for each row, or None")
    for mask, row in zip(masks, params, strict=True):
        if mask is not None and (mask.dtype != np.bool_ or mask.ndim != 1 or len(mask) < row.vocab_size):
            raise ParameterError(
                "masks", f"{mask.dtype} of shape {mask.shape}", f"booleans [at least vocab_size={row.vocab_size}]"
            )
    return [None if mask is None else mask[: row.vocab_size] for mask, row in zip(masks, params, strict=True)]
