"""The sampler chain: from a row of logits and that row's history to the law that tokens are drawn from.

Rule: law = filters(temperature(penalties(masks(logits, history)))), in the preset's order.
In: logits [rows, V] of any float type on any device, parameters and a History for each row.
Out: a Law for each row: PointMass at T = 0 or where one token is left, Sparse where at most an eighth
of the vocabulary is left by masks and filters, Dense otherwise; filtered tokens have probability 0.
A row's law is a function of that row, its parameters, its history with the samplers' states, and its position's XTC
coin alone: rows are computed one by one, by the same calls on the same data, whatever else is in the batch; so are
their bits.
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

from draftproof.core import Law, Noise, PointMass
from draftproof.errors import LawError, ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling.allowed import Mask, open_ids
from draftproof.sampling.filtered import filtered
from draftproof.sampling.history import History
from draftproof.sampling.mirostat import Mirostat
from draftproof.sampling.preset import Plan, Preset
from draftproof.sampling.presets import PRESETS
from draftproof.sampling.processed import processed
from draftproof.sampling.resolve import resolve
from draftproof.sampling.row_params import RowParams
from draftproof.sampling.steps import Step
from draftproof.sampling.to_law import finite_max

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}
_ENGINES_WINDOW: Final = "engine"
_LOOKING_AT_IDS: Final = ("allowed_token_ids", "bad_words", "min_tokens", "no_repeat_ngram_size", "mirostat")
"""Beside the steps of `Plan.changes`."""


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

    def is_blind_to_ids(self, params: RowParams) -> bool:
        """Do these parameters look at the logits' values alone: at no token's id, and at no history?

        Such a row's law is the same if tokens are renamed, and tokens that it gives -inf may as well be left out.
        """
        return not self.preset.plan(params).changes and not any(params.is_set(name) for name in _LOOKING_AT_IDS)

    def is_softmax(self, params: RowParams) -> bool:
        """Is the law a softmax at the request's temperature, and no more?"""
        return self.is_blind_to_ids(params) and self.preset.plan(params).filters == (Step.TEMPERATURE,)

    @overload
    def laws(
        self,
        logits: torch.Tensor,
        params: RowParams | Sequence[RowParams],
        histories: Sequence[History],
        *,
        masks: Sequence[Mask | None] | None = None,
        noise: Noise | Sequence[Noise] | None = None,
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
        noise: Noise | Sequence[Noise] | None = None,
        errors: Literal["return"],
    ) -> list[Law | LawError]: ...

    def laws(
        self,
        logits: torch.Tensor,
        params: RowParams | Sequence[RowParams],
        histories: Sequence[History],
        *,
        masks: Sequence[Mask | None] | None = None,
        noise: Noise | Sequence[Noise] | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Law] | list[Law | LawError]:
        """The law of each row.

        logits: [rows, >= V]; columns beyond a row's vocab_size are cut off. params: one for all rows, or one
        for each. histories: one for each row, drafts before the row included. masks: one [>= V] for each row,
        True = allowed, or None for a row that allows every token. noise: one for all rows, or one for each; needed
        for XTC's coins. errors: "raise" raises the first row's LawError, "return" puts it in that row's place and
        goes on.
        """
        if errors not in ("raise", "return"):
            raise ParameterError("errors", errors, "'raise' or 'return'")
        params = [params] * len(histories) if isinstance(params, RowParams) else list(params)
        rows = self._rows(logits, params, histories)
        row_masks, noises = _masks(masks, params), _noises(noise, params)
        found: list[Law | LawError] = []
        each = zip(rows, params, histories, row_masks, noises, strict=True)
        # What overflows in a row is found there, as its error and not as a warning.
        with np.errstate(all="ignore"):
            for index, (row, row_params, history, mask, own_noise) in enumerate(each):
                try:
                    own_logits, plan = row[: row_params.vocab_size], self.preset.plan(row_params)
                    found.append(self._law(own_logits, row_params, history, mask, own_noise, plan))
                except LawError as error:
                    located = LawError(f"row {index} of {len(rows)}: {error.message}")
                    if errors == "raise":
                        raise located from None
                    found.append(located)
        return found

    def law(
        self,
        logits: torch.Tensor,
        params: RowParams,
        history: History,
        *,
        mask: Mask | None = None,
        noise: Noise | None = None,
    ) -> Law:
        """As `laws` of one row. logits: [>= V]. mask: [>= V], or None. Raises LawError."""
        [row] = self._rows(logits[None], [params], [history])
        [row_mask], [own_noise] = _masks([mask], [params]), _noises(noise, [params])
        with np.errstate(all="ignore"):
            plan = self.preset.plan(params)
            return self._law(row[: params.vocab_size], params, history, row_mask, own_noise, plan)

    def probs(
        self,
        logits: torch.Tensor,
        params: RowParams | Sequence[RowParams],
        histories: Sequence[History],
        *,
        noise: Noise | Sequence[Noise] | None = None,
    ) -> torch.Tensor:
        """[rows, V] probabilities in the chain's type, on the logits' device. Rows share one vocab_size."""
        laws = self.laws(logits, params, histories, noise=noise)
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
            self.preset.plan(row)
        for row, history in zip(params, histories, strict=True):
            if row.mirostat is not None and not any(isinstance(state, Mirostat) for state in history.states):
                raise ParameterError("histories", history, "histories that begin with RowParams.first_history")
        rows: NDArray[Any] = logits.detach().to(device="cpu", dtype=_DTYPES[self.dtype]).contiguous().numpy()
        return rows

    def _law(
        self,
        logits: NDArray[Any],
        row: RowParams,
        history: History,
        mask: Mask | None,
        noise: Noise | None,
        plan: Plan,
    ) -> Law:
        # Masks overwrite, so the model's own row is looked at first.
        max_logit = finite_max(logits, "as the model gave it")
        allowed_ids = open_ids(row.allowed_ids, mask)
        changed = processed(logits, row, history, allowed_ids, self.preset, plan.changes)
        if changed is not logits:
            logits, max_logit = changed, finite_max(changed, "after masks and penalties")
        if row.temperature == 0.0 and not row.dynatemp_range:
            return PointMass(int(np.argmax(logits)))
        return filtered(logits, max_logit, row, history, noise, allowed_ids, self.preset, plan.filters)


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


def _noises(noise: Noise | Sequence[Noise] | None, params: Sequence[RowParams]) -> list[Noise | None]:
    """One noise or None for each row. Raises ParameterError where a row needs one and has none."""
    noises: list[Noise | None] = list(noise) if isinstance(noise, Sequence) else [noise] * len(params)
    if len(noises) != len(params):
        raise ParameterError("noise", f"{len(noises)} for {len(params)} rows", "one for all rows or one for each")
    for row, own in zip(params, noises, strict=True):
        if own is None and row.xtc_probability:
            raise ParameterError("noise", None, "given where xtc_probability is set", "the coin is the position's own")
    return noises
