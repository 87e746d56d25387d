"""Presets: the order, the tie rules and the parameters of the engine that each is named after.

"Lossless" always means "with respect to a named chain"; `Preset.describe` prints the chain.
A parameter that a preset's engine doesn't have is refused under that preset.

Sources, as read in 2026: vLLM v1 sampler; transformers 5.24 `_get_logits_processor` and its warpers;
llama.cpp `common_params_sampling` and llama-sampler.cpp; mlx-lm `sample_utils.py`.
Deviation: where an engine leaves the choice among ties to an unstable sort, the preset fixes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from draftproof.errors import ParameterError
from draftproof.sampling.row_params import RowParams
from draftproof.sampling.top_k import TopKTies
from draftproof.sampling.top_p import TopPTies


class Step(Enum):
    """One step of a chain. The value is what `describe` prints."""

    ALLOWED = "allowed_token_ids: every other token is masked"
    BAD_WORDS = "bad_words: the token that would complete one is masked"
    MIN_TOKENS = "min_tokens: EOS and stop_token_ids are masked while the output is shorter"
    BIAS = "logit_bias: added to the logit; -inf masks"
    PENALTIES = "repetition_penalty, then frequency_penalty, then presence_penalty"
    REPETITION = "repetition_penalty"
    TEMPERATURE = "temperature: divides; 0 takes the largest logit, the lowest id on ties"
    MIN_P = "min_p: keeps p >= min_p * max p; ties are kept"
    TOP_K = "top_k"
    TOP_P = "top_p: keeps the largest until their mass, renormalised over what is left, reaches top_p; at least one"


FILTERS: Final = (Step.MIN_P, Step.TOP_K, Step.TOP_P)
_PENALTY_STEPS: Final = (Step.PENALTIES, Step.REPETITION)


@dataclass(frozen=True)
class Preset:
    """The order and the rules of one engine's sampler.

    order: the steps, first to last. top_k_ties, top_p_ties: see top_k.py and top_p.py.
    windowed: penalties look at the last `penalty_window` tokens, prompt included; otherwise repetition
    looks at prompt and output, frequency and presence at the output.
    bad_words_see_prompt: whether a bad word may begin in the prompt.
    refused: fields that the engine doesn't have, each with what to do.
    engine_defaults: for information; what holds here are SamplingParams' own defaults.
    """

    name: str
    order: tuple[Step, ...]
    top_k_ties: TopKTies
    top_p_ties: TopPTies
    engine_defaults: str
    windowed: bool = False
    penalty_window: int | None = None
    bad_words_see_prompt: bool = False
    refused: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def temperature_first(self) -> bool:
        """Whether filters look at the law after temperature, or at the law at T = 1."""
        return self.order.index(Step.TEMPERATURE) < min(self.order.index(step) for step in FILTERS)

    def check(self, row: RowParams) -> None:
        """Raise ParameterError if `row` sets what this preset's engine doesn't have."""
        for name, hint in self.refused.items():
            if row.is_set(name):
                raise ParameterError(name, row.given(name), f"left unset under the preset {self.name!r}", hint)
        if self.name == "hf":
            ending = set(row.ending_ids.tolist()).intersection(row.banned_ids.tolist())
            if ending:
                raise ParameterError(
                    "bad_words",
                    sorted(ending),
                    "no EOS id alone under the preset 'hf'",
                    "transformers drops such an entry; use the preset 'vllm' or a logit_bias of -inf",
                )

    def describe(self) -> str:
        """The chain as text: order, ties, what penalties look at, the engine's defaults."""
        lines = [f"sampler chain {self.name!r}, in this order:"]
        for number, step in enumerate(self.order, 1):
            text = step.value
            if step is Step.TOP_K:
                text += f": keeps the k largest; {self.top_k_ties.value}"
            elif step is Step.TOP_P:
                text += f"; {self.top_p_ties.value}"
            elif step in _PENALTY_STEPS:
                text += f" ({self._seen()})"
            elif step is Step.BAD_WORDS:
                text += " (matched in prompt and output)" if self.bad_words_see_prompt else " (matched in the output)"
            lines.append(f"  {number}. {text}")
        law = "after temperature" if self.temperature_first else "at T = 1; temperature comes last"
        lines.append(f"filters look at the law {law}; each sees what the one before it left")
        lines.append("off: top_k 0 or -1, top_p 1, min_p 0, repetition_penalty 1, frequency and presence_penalty 0")
        lines.append(f"refused: {', '.join(self.refused) or 'nothing'}")
        lines.append(f"the engine's own defaults, which are not applied here: {self.engine_defaults}")
        return "\n".join(lines)

    def _seen(self) -> str:
        if not self.windowed:
            if Step.REPETITION in self.order:
                return "looks at prompt and output"
            return "repetition looks at prompt and output, the others at the output"
        window = "all tokens" if self.penalty_window is None else f"the last {self.penalty_window} tokens"
        return f"look at {window}, prompt included"


_NO_LIST = "this engine has no such list; use the preset 'vllm'"

PRESETS: Final = MappingProxyType(
    {
        preset.name: preset
        for preset in (
            Preset(
                name="vllm",
                order=(
                    Step.ALLOWED,
                    Step.BAD_WORDS,
                    Step.MIN_TOKENS,
                    Step.BIAS,
                    Step.PENALTIES,
                    Step.TEMPERATURE,
                    Step.MIN_P,
                    Step.TOP_K,
                    Step.TOP_P,
                ),
                top_k_ties=TopKTies.KEPT,
                top_p_ties=TopPTies.LOWEST_ID,
                engine_defaults="temperature 1, top_k 0, top_p 1, min_p 0",
            ),
            Preset(
                name="hf",
                order=(
                    Step.BIAS,
                    Step.REPETITION,
                    Step.BAD_WORDS,
                    Step.MIN_TOKENS,
                    Step.ALLOWED,
                    Step.TEMPERATURE,
                    Step.TOP_K,
                    Step.TOP_P,
                    Step.MIN_P,
                ),
                top_k_ties=TopKTies.KEPT,
                top_p_ties=TopPTies.HIGHEST_ID,
                bad_words_see_prompt=True,
                engine_defaults="temperature 1, top_k 50, top_p 1, min_p unset",
                refused=MappingProxyType(
                    {
                        "frequency_penalty": "transformers has repetition_penalty alone; use the preset 'vllm'",
                        "presence_penalty": "transformers has repetition_penalty alone; use the preset 'vllm'",
                    }
                ),
            ),
            Preset(
                name="llama.cpp",
                order=(Step.BIAS, Step.PENALTIES, Step.TOP_K, Step.TOP_P, Step.MIN_P, Step.TEMPERATURE),
                top_k_ties=TopKTies.LOWEST_ID,
                top_p_ties=TopPTies.LOWEST_ID,
                windowed=True,
                penalty_window=64,
                engine_defaults="temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, penalties over 64 tokens",
                refused=MappingProxyType(
                    {
                        "allowed_token_ids": _NO_LIST,
                        "bad_words": _NO_LIST,
                        "min_tokens": _NO_LIST.replace("list", "field"),
                    }
                ),
            ),
            Preset(
                name="mlx",
                order=(Step.BIAS, Step.PENALTIES, Step.TOP_P, Step.MIN_P, Step.TOP_K, Step.TEMPERATURE),
                top_k_ties=TopKTies.LOWEST_ID,
                top_p_ties=TopPTies.HIGHEST_ID,
                windowed=True,
                penalty_window=20,
                engine_defaults="temperature 0, top_k 0, top_p 1, min_p 0, penalties over 20 tokens",
                refused=MappingProxyType(
                    {
                        "allowed_token_ids": _NO_LIST,
                        "bad_words": _NO_LIST,
                        "min_tokens": _NO_LIST.replace("list", "field"),
                    }
                ),
            ),
        )
    }
)
