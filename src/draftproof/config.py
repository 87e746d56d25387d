"""SpeculativeConfig and EngineConfig: what an engine is built from. Frozen, validated, printable."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from draftproof.errors import ParameterError

LEARNED_METHODS: Final = ("dflash", "dspark", "mtp", "eagle3")
METHODS: Final = ("ngram", "suffix", "draft_model", *LEARNED_METHODS)
CHAIN_VERIFIERS: Final = ("rejection", "block")
TREE_VERIFIERS: Final = ("recursive", "traversal", "hybrid", "multi_round", "k_seq", "multi_path_block")
VERIFIERS: Final = ("keyed", "match", *CHAIN_VERIFIERS, *TREE_VERIFIERS)
DTYPES: Final = ("auto", "float32", "bfloat16", "float16", "float64")
CHAINS: Final = ("vllm", "hf", "llama.cpp", "mlx")
LOGPROBS_MODES: Final = ("raw_logprobs", "raw_logits", "processed_logprobs")
MAX_SPECULATIVE_TOKENS: Final = 128


class _FromMapping:
    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """Builds the config from a mapping; an unknown key is a ParameterError that suggests the nearest."""
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise ParameterError(
                    key,
                    given[key],
                    f"one of the fields {', '.join(known)}",
                    f"did you mean {near[0]!r}?" if near else "remove it",
                )
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for reports."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig(_FromMapping):
    """How to draft and how to verify. Field names are vLLM's where vLLM has one.

    method: ngram (prompt lookup), suffix (suffix automaton), draft_model (a smaller model), or dflash, dspark, mtp,
    eagle3: drafters that were trained for this target and read its hidden states.
    num_speculative_tokens: drafted tokens per pass; the most of them when draft_length is "auto".
    draft_length: "auto" chooses 0 to num_speculative_tokens before each pass; "fixed" drafts that many.
    verifier: keyed (replay guarantee; greedy at temperature 0), match, rejection, block (exact-law); traversal,
    recursive, hybrid, multi_round, k_seq, multi_path_block (exact-law, rules for trees that were drawn).
    model: draft_model's folder, GGUF file or hub name; a learned drafter's folder or hub name.
    prompt_lookup_min, prompt_lookup_max: shortest and longest n-gram that is looked up; suffix takes
    prompt_lookup_min as its shortest match.
    share_target_noise: under keyed, let the drafter draw with the target's own noise.
    """

    method: str = "ngram"
    num_speculative_tokens: int = 8
    draft_length: str = "auto"
    verifier: str = "keyed"
    model: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    share_target_noise: bool = True

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of(
            "verifier", self.verifier, VERIFIERS, "greedy is keyed's case of temperature 0, and is chosen by itself"
        )
        _one_of("draft_length", self.draft_length, ("auto", "fixed"))
        _integer("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_SPECULATIVE_TOKENS)
        _integer("prompt_lookup_min", self.prompt_lookup_min, 1, 64)
        _integer("prompt_lookup_max", self.prompt_lookup_max, self.prompt_lookup_min, 64)
        if (self.method in ("draft_model", *LEARNED_METHODS)) != (self.model is not None):
            raise ParameterError(
                "model",
                self.model,
                f"a folder or hub name with the methods draft_model (also a GGUF file), {', '.join(LEARNED_METHODS)}, "
                "and unset with the others",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(_FromMapping):
    """Where and how the target runs.

    model: None for the embedded default model, else a local folder, a GGUF file or a hub name.
    dtype: "auto" is bfloat16 where the device has it in hardware, float32 otherwise.
    invariant: run every forward at fixed shapes, so that a row's logits are the same bits whatever
    shares its forward; None turns it on below float32. invariant_width: tokens of a forward where shapes have to be
    fixed for that; runs that are to give the same text must have the same.
    max_num_seqs: how many requests run at once. max_model_len: positions, the model's own if None.
    chain: whose order of filters and rule of ties: vllm, hf, llama.cpp, mlx. chain_dtype: of the laws.
    logprobs_mode: which numbers `logprobs` reports; see engine/logprobs.py.
    generation_config: where the defaults of sampling parameters come from that a request leaves unset: "auto" is the
    model's generation_config.json, "vllm" none of it, else a folder that holds one.
    """

    model: str | None = None
    dtype: str = "auto"
    device: str = "cpu"
    invariant: bool | None = None
    invariant_width: int = 16
    max_num_seqs: int = 1
    max_model_len: int | None = None
    chain: str = "vllm"
    chain_dtype: str = "float32"
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("chain", self.chain, CHAINS)
        _one_of("chain_dtype", self.chain_dtype, ("float32", "float64"))
        _one_of(
            "logprobs_mode",
            self.logprobs_mode,
            LOGPROBS_MODES,
            "a law has its logits up to a constant: ask for processed_logprobs in place of processed_logits",
        )
        if not isinstance(self.generation_config, str) or not self.generation_config:
            raise ParameterError("generation_config", self.generation_config, '"auto", "vllm" or a folder')
        _integer("invariant_width", self.invariant_width, 1, MAX_SPECULATIVE_TOKENS + 1)
        _integer("max_num_seqs", self.max_num_seqs, 1, 1024)
        if self.max_model_len is not None:
            _integer("max_model_len", self.max_model_len, 2, 1 << 31)
        if self.invariant not in (None, True, False):
            raise ParameterError("invariant", self.invariant, "True, False or None")


def _one_of(field: str, value: object, allowed: tuple[str, ...], hint: str = "") -> None:
    if value not in allowed:
        raise ParameterError(field, value, f"one of {', '.join(allowed)}", hint)


def _integer(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(field, value, f"an integer, {low} to {high}")
