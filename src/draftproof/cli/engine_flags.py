"""Flags of the engine: the model, how it runs, how it speculates. The dataclasses of config.py check the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from draftproof.cli.output import note
from draftproof.cli.values import Number
from draftproof.cli.verb import AliasedOption
from draftproof.config import (
    CHAINS,
    DEFAULT_TREE_DEPTH,
    DEFAULT_TREE_NODES,
    DTYPES,
    LEARNED_METHODS,
    LOGPROBS_MODES,
    MAX_SPECULATIVE_TOKENS,
    METHODS,
    TOPOLOGIES,
    TREE_BUILDERS,
    VERIFIERS,
    EngineConfig,
    SpeculativeConfig,
)
from draftproof.errors import ParameterError

Function = TypeVar("Function", bound=Callable[..., Any])

METHOD_ALIASES: Final[Mapping[str, str]] = {
    # llama.cpp's --spec-type
    "ngram-simple": "ngram",
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
    # SGLang's --speculative-algorithm
    "standalone": "draft_model",
    # hyphens, as flags have them
    "draft-model": "draft_model",
}
"""Another engine's word for a method, in lower case -> ours."""

DTYPE_ALIASES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}


def choice(words: Sequence[str]) -> str:
    return "{" + ",".join(words) + "}"


_MODEL_OPTIONS: Final = (
    click.option("-m", "--model", cls=AliasedOption, aliases=("--model-path",), metavar="MODEL",
                 help="A local folder, a GGUF file or a hub name. [default: the embedded SmolLM2-135M-Instruct]"),
    click.option("--dtype", metavar=choice(DTYPES),
                 help="auto is bfloat16 where the device has it in hardware; on other x86 CPUs float16, which is "
                      "weights alone there, under arithmetic in float32; float32 otherwise. [default: auto]"),
    click.option("--device", help="cpu, cuda, cuda:1, … [default: cpu]"),
    click.option("--invariant/--no-invariant", default=None,
                 help="Forwards of fixed shapes, so that a row's logits are the same bits whatever shares its forward. "
                      "[default: on below float32]"),
    click.option("--invariant-width", type=Number(int),
                 help="Tokens of a forward where its shape is fixed; the same for runs that are to give the same text. "
                      "[default: 16]"),
    click.option("--max-model-len", type=Number(int), help="Positions. [default: the model's]"),
    click.option("--max-num-seqs", type=Number(int), help="How many requests run at once. [default: 8]"),
    click.option("--max-num-batched-tokens", type=Number(int),
                 help="Tokens of one step, prompts and drafts together. [default: 512]"),
    click.option("--max-num-waiting", type=Number(int),
                 help="Requests in the queue before more are refused. [default: 1024]"),
    click.option("--max-num-cached-tokens", type=Number(int),
                 help="Tokens whose keys and values are kept, of all requests together. "
                      "[default: what they could need, or what memory is free]"),
    click.option("--cache-memory", type=Number(int), help="The same in bytes."),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None,
                 help="Requests copy what others have cached of their prompts. [default: on with --invariant]"),
    click.option("--chain", metavar=choice(CHAINS),
                 help="Whose order of filters and rule of ties; `draftproof ls` prints them. [default: vllm]"),
    click.option("--chain-dtype", metavar="{float32,float64}", help="Of the laws. [default: float32]"),
    click.option("--logprobs-mode", metavar=choice(LOGPROBS_MODES),
                 help="Which numbers --logprobs reports. [default: raw_logprobs]"),
    click.option("--generation-config", metavar="{auto,vllm,FOLDER}",
                 help="Where defaults of sampling flags come from: the model's generation_config.json, nowhere, or "
                      "another folder's. [default: auto]"),
    click.option("--async-scheduling/--no-async-scheduling", default=None,
                 help="Steps run ahead of the host, which reads tokens one step behind, where a batch allows it. "
                      "[default: on with CUDA devices]"),
    click.option("--tensor-parallel-size", "-tp", cls=AliasedOption, aliases=("--tp-size",), type=Number(int),
                 help="Over how many processes the model is cut, each with a device of its own: start as many with "
                      "`torchrun --nproc-per-node N -m draftproof …`. [default: 1]"),
)  # fmt: skip

_SPECULATION_OPTIONS: Final = (
    click.option("--method", cls=AliasedOption, aliases=("--spec-type", "--speculative-algorithm"),
                 metavar=choice(METHODS), help="How to draft. [default: ngram, or draft_model with --draft-model]"),
    click.option("--draft-model", "-md", cls=AliasedOption,
                 aliases=("--model-draft", "--spec-draft-model", "--speculative-draft-model-path"),
                 metavar="MODEL", help="A smaller model with the same tokenizer, or a learned drafter's folder. "
                 "[default for learned drafters: ours, for the embedded model]"),
    click.option("--num-speculative-tokens", "-k", "--num-draft-tokens", cls=AliasedOption,
                 aliases=("--spec-draft-n-max", "--speculative-num-draft-tokens"), type=Number(int),
                 help=f"Drafted tokens per pass, 1 to {MAX_SPECULATIVE_TOKENS}; the most with --draft-length auto. "
                      "[default: 8]"),
    click.option("--draft-length", metavar="{auto,fixed}",
                 help="auto chooses 0 to so many before each pass; fixed drafts so many. [default: auto]"),
    click.option("--verifier", metavar=choice(VERIFIERS),
                 help="keyed: the same text as without speculation; the others: the same law. [default: keyed]"),
    click.option("--prompt-lookup-min", type=Number(int),
                 help="Shortest n-gram that is looked up; suffix's shortest match. [default: 2]"),
    click.option("--prompt-lookup-max", type=Number(int), help="Longest n-gram that is looked up. [default: 5]"),
    click.option("--lookup-first", type=Number(int),
                 help="Where the text's last so many tokens or more stood before, draft what came after them and don't "
                      "ask the draft model or learned drafter; a tree takes both. [default: never]"),
    click.option("--share-target-noise/--no-share-target-noise", default=None,
                 help="Under keyed, let a draft model draw with the target's own noise. [default: on]"),
    click.option("--topology", metavar=choice(TOPOLOGIES),
                 help="tree: several candidates at a position, verified in one pass. auto: whichever emits more in the "
                      "time it takes. [default: chain]"),
    click.option("--num-tree-nodes", type=Number(int),
                 help=f"Nodes of a tree, the most of them with --draft-length auto. [default: {DEFAULT_TREE_NODES}]"),
    click.option("--max-tree-depth", type=Number(int),
                 help=f"Tokens on a tree's longest path. [default: {DEFAULT_TREE_DEPTH}]"),
    click.option("--tree-builder", metavar=choice(TREE_BUILDERS),
                 help="Which candidates a tree has. [default: best_first; static for drawn trees]"),
    click.option("--confidence-threshold", type=Number(float),
                 help="With dspark, end a draft before a token whose predicted probability of acceptance is lower. "
                      "[default: 0]"),
    click.option("--noise-weight", type=Number(float),
                 help="Under keyed, how much the target's noise counts when the drafter chooses, 0 to 3. "
                      "[default: 1; tuned for trees of length auto]"),
    click.option("--sharpness", type=Number(float),
                 help="The power that the drafter's law is raised to. [default: 1; tuned for trees of length auto]"),
    click.option("--no-speculation", is_flag=True, help="Decode plainly; says so if a flag above is then unused."),
)  # fmt: skip

_ENGINE_FIELDS: Final = (
    "model",
    "dtype",
    "device",
    "invariant",
    "invariant_width",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_waiting",
    "max_num_cached_tokens",
    "cache_memory",
    "enable_prefix_caching",
    "chain",
    "chain_dtype",
    "logprobs_mode",
    "generation_config",
    "async_scheduling",
    "tensor_parallel_size",
)
_SPECULATIVE_FIELDS: Final = (
    "method",
    "num_speculative_tokens",
    "draft_length",
    "verifier",
    "prompt_lookup_min",
    "prompt_lookup_max",
    "lookup_first",
    "share_target_noise",
    "topology",
    "num_tree_nodes",
    "max_tree_depth",
    "tree_builder",
    "confidence_threshold",
    "noise_weight",
    "sharpness",
)


def engine_flags(function: Function) -> Function:
    """Adds the flags of the model and of speculation."""
    for option in reversed((*_MODEL_OPTIONS, *_SPECULATION_OPTIONS)):
        function = option(function)
    return function


def engine_config(given: Mapping[str, Any]) -> EngineConfig:
    """EngineConfig from flags' values. Raises ParameterError."""
    values = {name: given[name] for name in _ENGINE_FIELDS if given.get(name) is not None}
    if "dtype" in values:
        values["dtype"] = DTYPE_ALIASES.get(values["dtype"], values["dtype"])
    return EngineConfig(**values)


def speculative_config(given: Mapping[str, Any]) -> SpeculativeConfig | None:
    """SpeculativeConfig from flags' values, checked in any case; None with --no-speculation. Raises ParameterError."""
    values = {name: given[name] for name in _SPECULATIVE_FIELDS if given.get(name) is not None}
    draft_model = given.get("draft_model")
    if "method" in values:
        values["method"] = METHOD_ALIASES.get(values["method"].lower(), values["method"].lower())
    elif draft_model is not None:
        values["method"] = "draft_model"
    method = values.get("method", "ngram")
    with_model = ("draft_model", *LEARNED_METHODS)
    if method == "draft_model" and draft_model is None:
        raise ParameterError("draft_model", None, f"a folder or hub name with the method {method}")
    if method in METHODS and method not in with_model and draft_model is not None:
        raise ParameterError("draft_model", draft_model, f"left out with the method {method}")
    config = SpeculativeConfig(**values, model=draft_model)
    if not given.get("no_speculation"):
        return config
    unused = [
        f"--{name.replace('_', '-')}" for name in (*_SPECULATIVE_FIELDS, "draft_model") if given.get(name) is not None
    ]
    if unused:
        note(f"note: decoding plainly (--no-speculation), so {', '.join(unused)} {_is_or_are(unused)} not used")
    return None


def _is_or_are(words: Sequence[str]) -> str:
    return "is" if len(words) == 1 else "are"
