"""Presets: the order, the tie rules and the parameters of the engine that each is named after.

"Lossless" always means "with respect to a named chain"; `Preset.describe` prints the chain.
A parameter that a preset's engine doesn't have is refused under that preset. One preset is more than its engine:
`vllm`, the default, has every sampler, since vLLM's own are the smallest set. Those that vLLM lacks stand where they
leave vLLM's order alone: masks with the masks, DRY after the penalties, dynamic temperature as the temperature, and the
filters after top-p in transformers' order, then XTC; top_n_sigma comes first, as in llama.cpp. Without them the preset
is vLLM's chain.

Custom processors: after the masks and before the penalties in `vllm` (vLLM v1's custom processors), after all
processors in `hf` (transformers appends them), after bias and before penalties in `llama.cpp` (llama-cpp-python), after
bias and penalties in `mlx`. A row's own mask (structured output) is applied with the masks in every preset.

Sources, as read in 2026: vLLM v1 sampler; transformers 5.24 `_get_logits_processor` and its warpers;
llama.cpp `common_sampler_init` and llama-sampler.cpp; mlx-lm `sample_utils.py`.
Deviations: where an engine leaves the choice among ties to an unstable sort, the preset fixes one; llama.cpp builds
another chain under mirostat (bias, temperature, mirostat), so what that chain leaves out is refused with it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from draftproof.sampling.preset import Preset
from draftproof.sampling.steps import Step
from draftproof.sampling.top_k import TopKTies
from draftproof.sampling.top_p import TopPTies
from draftproof.sampling.typical_p import TypicalTies
from draftproof.sampling.xtc import XtcTies

_USE_VLLM: Final = "this engine has no such {}; use the preset 'vllm'"
_NO_LIST: Final = _USE_VLLM.format("list")
_NO_FIELD: Final = _USE_VLLM.format("field")
_NO_SAMPLER: Final = _USE_VLLM.format("sampler")
_REPETITION_ALONE: Final = "transformers has repetition_penalty alone; use the preset 'vllm'"


def _refused(names: str, hint: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), hint)


_VLLM: Final = Preset(
    name="vllm",
    order=(
        Step.ALLOWED,
        Step.BAD_WORDS,
        Step.MIN_TOKENS,
        Step.NO_REPEAT,
        Step.BIAS,
        Step.CUSTOM,
        Step.PENALTIES,
        Step.DRY,
        Step.TEMPERATURE,
        Step.TOP_N_SIGMA,
        Step.MIN_P,
        Step.TOP_K,
        Step.TOP_P,
        Step.TYPICAL_P,
        Step.EPSILON,
        Step.ETA,
        Step.XTC,
        Step.MIROSTAT,
    ),
    top_k_ties=TopKTies.KEPT,
    top_p_ties=TopPTies.LOWEST_ID,
    engine_defaults="temperature 1, top_k 0, top_p 1, min_p 0",
)
_HF: Final = Preset(
    name="hf",
    order=(
        Step.BIAS,
        Step.REPETITION,
        Step.NO_REPEAT,
        Step.BAD_WORDS,
        Step.MIN_TOKENS,
        Step.ALLOWED,
        Step.CUSTOM,
        Step.TEMPERATURE,
        Step.TOP_K,
        Step.TOP_P,
        Step.MIN_P,
        Step.TYPICAL_P,
        Step.EPSILON,
        Step.ETA,
    ),
    top_k_ties=TopKTies.KEPT,
    top_p_ties=TopPTies.HIGHEST_ID,
    bad_words_see_prompt=True,
    engine_defaults="temperature 1, top_k 50, top_p 1, min_p unset",
    refused=MappingProxyType(
        _refused("frequency_penalty presence_penalty", _REPETITION_ALONE)
        | _refused("top_n_sigma xtc_probability dry_multiplier mirostat dynatemp_range", _NO_SAMPLER)
    ),
)
_LLAMA_CPP: Final = Preset(
    name="llama.cpp",
    order=(
        Step.BIAS,
        Step.CUSTOM,
        Step.PENALTIES,
        Step.DRY,
        Step.TOP_N_SIGMA,
        Step.TOP_K,
        Step.TYPICAL_P,
        Step.TOP_P,
        Step.MIN_P,
        Step.XTC,
        Step.TEMPERATURE,
        Step.MIROSTAT,
    ),
    top_k_ties=TopKTies.LOWEST_ID,
    top_p_ties=TopPTies.LOWEST_ID,
    typical_ties=TypicalTies.CUT,
    xtc_ties=XtcTies.ONE,
    windowed=True,
    penalty_window=64,
    engine_defaults="temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, penalties over 64 tokens",
    refused=MappingProxyType(
        _refused("allowed_token_ids bad_words", _NO_LIST)
        | _refused("min_tokens", _NO_FIELD)
        | _refused("epsilon_cutoff eta_cutoff no_repeat_ngram_size", _NO_SAMPLER)
    ),
    refused_with_mirostat=("repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier"),
)
_MLX: Final = Preset(
    name="mlx",
    order=(
        Step.BIAS,
        Step.PENALTIES,
        Step.CUSTOM,
        Step.TOP_P,
        Step.MIN_P,
        Step.XTC,
        Step.TOP_K,
        Step.TEMPERATURE,
    ),
    top_k_ties=TopKTies.LOWEST_ID,
    top_p_ties=TopPTies.HIGHEST_ID,
    xtc_ties=XtcTies.ABOVE,
    windowed=True,
    penalty_window=20,
    engine_defaults="temperature 0, top_k 0, top_p 1, min_p 0, penalties over 20 tokens",
    refused=MappingProxyType(
        _refused("allowed_token_ids bad_words", _NO_LIST)
        | _refused("min_tokens", _NO_FIELD)
        | _refused("typical_p top_n_sigma epsilon_cutoff eta_cutoff dry_multiplier mirostat", _NO_SAMPLER)
        | _refused("dynatemp_range no_repeat_ngram_size", _NO_SAMPLER)
    ),
)

PRESETS: Final = MappingProxyType({preset.name: preset for preset in (_VLLM, _HF, _LLAMA_CPP, _MLX)})
