"""SpeculativeConfig and EngineConfig: what an engine is built from. Frozen, validated, printable."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from draftproof.errors import ParameterError

LOOKUP_METHODS: Final = ("ngram", "suffix", "forced")
LEARNED_METHODS: Final = ("dflash", "dspark", "mtp", "eagle3")
METHODS: Final = ("ngram", "suffix", "forced", "draft_model", *LEARNED_METHODS)
CHAIN_VERIFIERS: Final = ("rejection", "block")
TREE_VERIFIERS: Final = ("recursive", "traversal", "hybrid", "multi_round", "k_seq", "multi_path_block")
VERIFIERS: Final = ("keyed", "match", *CHAIN_VERIFIERS, *TREE_VERIFIERS)
DTYPES: Final = ("auto", "float32", "bfloat16", "float16", "float64")
CHAINS: Final = ("vllm", "hf", "llama.cpp", "mlx")
LOGPROBS_MODES: Final = ("raw_logprobs", "raw_logits", "processed_logprobs")
MAX_SPECULATIVE_TOKENS: Final = 128
TOPOLOGIES: Final = ("chain", "tree", "auto")
TREE_BUILDERS: Final = ("best_first", "top_k", "static")
DEFAULT_TREE_NODES: Final = 32
DEFAULT_TREE_DEPTH: Final = 8
MAX_NOISE_WEIGHT: Final = 3.0
MAX_SHARPNESS: Final = 8.0


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

    method: ngram (prompt lookup), suffix (suffix automaton), forced (what a grammar forces, which the others begin
    with as well), draft_model (a smaller model), or dflash, dspark, mtp,
    eagle3: drafters that were trained for this target and read its hidden states.
    num_speculative_tokens: drafted tokens per pass; the most of them when draft_length is "auto".
    draft_length: "auto" chooses 0 to num_speculative_tokens before each pass; "fixed" drafts that many.
    verifier: keyed (replay guarantee; greedy at temperature 0), match, rejection, block (exact-law); traversal,
    recursive, hybrid, multi_round, k_seq, multi_path_block (exact-law, rules for trees that were drawn).
    model: draft_model's folder, GGUF file or hub name; a learned drafter's folder or hub name, None for the one that
    this package brings along for the embedded model.
    prompt_lookup_min, prompt_lookup_max: shortest and longest n-gram that is looked up; suffix takes
    prompt_lookup_min as its shortest match.
    lookup_first: with the methods that have weights, where the text's last so many tokens or more stood in it before:
    for chains what came after them is drafted, and the drafter is not asked; for trees under keyed it is mixed into the
    drafter's laws; unset for never.
    share_target_noise: under keyed, let the drafter draw with the target's own noise.
    topology: "chain", or "tree": several candidates at a position, `num_tree_nodes` of them in all (32 if unset), on
    paths of up to `max_tree_depth` tokens (8 if unset); under keyed with draft_length "auto" also "auto": a chain or a
    tree, whichever emits more in the time it takes, within the tree's bounds.
    tree_builder: best_first, top_k or static; static, the default there, under a verifier that tests drawn trees.
    confidence_threshold: with dspark, a draft ends before the first token whose predicted probability of acceptance is
    below it; 0 drafts on.
    noise_weight: under keyed, how much the target's noise counts when the drafter chooses (zeta, 0 to 3). sharpness:
    the power that the drafter's law is raised to before a token is drawn or a tree's candidates are compared. Unset
    both are 1; for the topologies tree and auto under keyed with draft_length "auto" they are tuned on line.
    """

    method: str = "ngram"
    num_speculative_tokens: int = 8
    draft_length: str = "auto"
    verifier: str = "keyed"
    model: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    lookup_first: int | None = None
    share_target_noise: bool = True
    topology: str = "chain"
    num_tree_nodes: int | None = None
    max_tree_depth: int | None = None
    tree_builder: str | None = None
    confidence_threshold: float = 0.0
    noise_weight: float | None = None
    sharpness: float | None = None

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of(
            "verifier", self.verifier, VERIFIERS, "greedy is keyed's case of temperature 0, and is chosen by itself"
        )
        _one_of("draft_length", self.draft_length, ("auto", "fixed"))
        _integer("num_speculative_tokens", self.num_speculative_tokens, 1, MAX_SPECULATIVE_TOKENS)
        _integer("prompt_lookup_min", self.prompt_lookup_min, 1, 64)
        _integer("prompt_lookup_max", self.prompt_lookup_max, self.prompt_lookup_min, 64)
        _share("confidence_threshold", self.confidence_threshold)
        if self.confidence_threshold and self.method != "dspark":
            raise ParameterError(
                "confidence_threshold", self.confidence_threshold, f"left out with the method {self.method}",
                "dspark alone has a head that says how sure it is",
            )  # fmt: skip
        if self.method == "draft_model" and self.model is None:
            raise ParameterError("model", None, "a folder, GGUF file or hub name with the method draft_model")
        if self.model is not None and self.method not in ("draft_model", *LEARNED_METHODS):
            raise ParameterError(
                "model", self.model, f"unset with the methods {', '.join(LOOKUP_METHODS)}, which have no weights"
            )
        if self.lookup_first is not None:
            _integer("lookup_first", self.lookup_first, 1, 64)
            if self.method in LOOKUP_METHODS:
                raise ParameterError(
                    "lookup_first", self.lookup_first, "unset for methods that have no weights",
                    "these look up by themselves",
                )  # fmt: skip
            if self.topology != "chain" and self.verifier != "keyed":
                raise ParameterError(
                    "lookup_first", self.lookup_first, "unset for trees under other verifiers than keyed",
                    "what lookups are worth is learned from request to request, and their laws may not depend on that",
                )  # fmt: skip
        check_topology(self)

    @property
    def most_drafted(self) -> int:
        """The most tokens that a pass drafts: a tree's nodes, or a chain's tokens."""
        if self.topology == "chain":
            return self.num_speculative_tokens
        return self.num_tree_nodes or DEFAULT_TREE_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(_FromMapping):
    """Where and how the target runs.

    model: None for the embedded default model, else a local folder, a GGUF file or a hub name.
    dtype: "auto" is bfloat16 where the device has it in hardware; on other x86 CPUs float16, which there are weights
    under arithmetic in float32; float32 otherwise.
    invariant: run every forward at fixed shapes, so that a row's logits are the same bits whatever
    shares its forward; None turns it on below float32. invariant_width: tokens of a forward where shapes have to be
    fixed for that; runs that are to give the same text must have the same.
    max_num_seqs: how many requests run at once. max_model_len: positions, the model's own if None.
    max_num_batched_tokens: of one step, contexts and drafts together. max_num_waiting: requests in the queue before
    the engine refuses more. max_num_cached_tokens, cache_memory (bytes): of all requests' keys and values together;
    give one or none, see targets/memory.py. enable_prefix_caching: requests copy what others have cached of their
    prompts; None turns it on where `invariant` makes a copy the same bits as computing it.
    chain: whose order of filters and rule of ties: vllm, hf, llama.cpp, mlx. chain_dtype: of the laws.
    logprobs_mode: which numbers `logprobs` reports; see engine/logprobs.py.
    generation_config: where the defaults of sampling parameters come from that a request leaves unset: "auto" is the
    model's generation_config.json, "vllm" none of it, else a folder that holds one.
    async_scheduling: steps run ahead of the host, which reads tokens one step behind, where a batch allows it; None
    does so on CUDA devices. It changes no text.
    tensor_parallel_size: over how many processes, a device each, the model is cut; start as many by torchrun.
    """

    model: str | None = None
    dtype: str = "auto"
    device: str = "cpu"
    invariant: bool | None = None
    invariant_width: int = 16
    max_num_seqs: int = 8
    max_model_len: int | None = None
    max_num_batched_tokens: int = 512
    max_num_waiting: int = 1024
    max_num_cached_tokens: int | None = None
    cache_memory: int | None = None
    enable_prefix_caching: bool | None = None
    chain: str = "vllm"
    chain_dtype: str = "float32"
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"
    async_scheduling: bool | None = None
    tensor_parallel_size: int = 1

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
        _integer("max_num_batched_tokens", self.max_num_batched_tokens, 2, 1 << 20)
        _integer("max_num_waiting", self.max_num_waiting, 1, 1 << 31)
        _integer("tensor_parallel_size", self.tensor_parallel_size, 1, 1024)
        for name in ("max_num_cached_tokens", "cache_memory"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 1, 1 << 62)
        if self.enable_prefix_caching not in (None, True, False):
            raise ParameterError("enable_prefix_caching", self.enable_prefix_caching, "True, False or None")
        if self.max_model_len is not None:
            _integer("max_model_len", self.max_model_len, 2, 1 << 31)
        if self.async_scheduling not in (None, True, False):
            raise ParameterError("async_scheduling", self.async_scheduling, "True, False or None")
        if self.invariant not in (None, True, False):
            raise ParameterError("invariant", self.invariant, "True, False or None")


def _one_of(field: str, value: object, allowed: tuple[str, ...], hint: str = "") -> None:
    if value not in allowed:
        raise ParameterError(field, value, f"one of {', '.join(allowed)}", hint)


def _share(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ParameterError(field, value, "a number, 0 to 1")


def _integer(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(field, value, f"an integer, {low} to {high}")


def check_topology(config: SpeculativeConfig) -> None:
    """Refuses fields that the topology, the verifier or the method would leave without effect, and values out of range.

    Raises ParameterError.
    """
    _one_of("topology", config.topology, TOPOLOGIES)
    is_tree, verifier = config.topology != "chain", config.verifier
    if config.topology == "auto" and (verifier != "keyed" or config.draft_length != "auto"):
        raise ParameterError(
            "topology",
            "auto",
            f"'chain' or 'tree' with the verifier {verifier} and the draft_length {config.draft_length}",
            "what tunes itself looks at drafts and at the clock: only keyed's text can't depend on them",
        )
    for name in ("num_tree_nodes", "max_tree_depth", "tree_builder"):
        if not is_tree and getattr(config, name) is not None:
            raise ParameterError(name, getattr(config, name), "unset for a chain", "set topology to 'tree' or 'auto'")
    for name in ("num_tree_nodes", "max_tree_depth"):
        if getattr(config, name) is not None:
            _integer(name, getattr(config, name), 1, MAX_SPECULATIVE_TOKENS)
    if is_tree and verifier in CHAIN_VERIFIERS:
        raise ParameterError(
            "topology", "tree", f"'chain' with the verifier {verifier}", "use keyed, match, or traversal for trees"
        )
    if config.tree_builder is not None:
        _one_of("tree_builder", config.tree_builder, TREE_BUILDERS)
        if verifier in TREE_VERIFIERS and config.tree_builder != "static":
            raise ParameterError(
                "tree_builder",
                config.tree_builder,
                f"'static' or unset with the verifier {verifier}",
                "a tree that is drawn for a ratio test must have its shape before it is drawn",
            )
    _check_looks(config, is_lookup_chain=not is_tree and config.method in LOOKUP_METHODS)


def _check_looks(config: SpeculativeConfig, *, is_lookup_chain: bool) -> None:
    for name, most in (("noise_weight", MAX_NOISE_WEIGHT), ("sharpness", MAX_SHARPNESS)):
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise ParameterError(name, value, f"a number, {'0' if name == 'noise_weight' else 'above 0'} to {most:g}")
        if is_lookup_chain:
            raise ParameterError(name, value, f"unset for a chain of the method {config.method}", "nothing is drawn")
    if config.noise_weight is not None:
        if config.verifier != "keyed":
            raise ParameterError(
                "noise_weight", config.noise_weight, "unset with other verifiers than keyed", "they bear no such look"
            )
        if not config.share_target_noise:
            raise ParameterError("noise_weight", config.noise_weight, "unset where share_target_noise is False")
    if config.sharpness is not None:
        if config.sharpness == 0:
            raise ParameterError("sharpness", config.sharpness, f"a number above 0, up to {MAX_SHARPNESS:g}")
        if config.topology == "chain" and config.verifier == "keyed":
            raise ParameterError(
                "sharpness",
                config.sharpness,
                "unset for a chain under keyed",
                "the most probable token is the same at any sharpness; set noise_weight",
            )
