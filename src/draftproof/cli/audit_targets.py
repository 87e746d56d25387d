"""From flags to what is audited: engines, scorers, prompts and settings."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from draftproof.cli.engine_flags import engine_config, speculative_config
from draftproof.cli.loading import open_engine
from draftproof.cli.output import note
from draftproof.cli.values import to_number
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.audit.endpoint import EndpointEngine
    from draftproof.audit.engine import Engine
    from draftproof.audit.scorer import Scorer
    from draftproof.llm import LLM
    from draftproof.params import SamplingParams

PROMPTS: Final = (
    "The capital of France is",
    "one fish, two fish, red fish, blue fish, one fish, two fish,",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a",
    "1, 2, 3, 5, 8, 13,",
    "The quick brown fox jumps over the lazy dog. The quick brown",
    "Q: What is the boiling point of water?\nA:",
    "In the beginning",
)
"""What is asked where --prompts is left out: texts that n-grams can draft for, and texts that they can't."""
_PAIR = re.compile(r"\s*([a-z_]+)\s*=\s*(.*)\s*")


def open_llm(given: Mapping[str, Any], *, plain: bool = False) -> LLM:
    """draftproof's own engine from the engine's flags; plain: without speculation."""
    speculative = None if plain else speculative_config(given)
    return open_engine(engine_config(given), speculative)


def open_audited(text: str, given: Mapping[str, Any], llm: LLM | None, drafter: LLM | None = None) -> Engine:
    """The engine that `text` names: ours, plain, transformers[:lookup|:assistant], an http(s) address, or
    module:function.
    """
    if text in ("ours", "plain"):
        from draftproof.audit.ours import OurEngine

        return OurEngine(llm if llm is not None and text == "ours" else open_llm(given, plain=text == "plain"))
    if text in ("transformers", "transformers:lookup", "transformers:assistant"):
        from draftproof.audit.assisted import TransformersEngine

        own = llm or open_llm(given, plain=True)
        num_draft = given.get("num_speculative_tokens") or 4
        lookup = num_draft if text.endswith(":lookup") else None
        assistant = None
        if text.endswith(":assistant"):
            if drafter is None:
                raise ParameterError("drafter_weights", None, "the assistant's folder", "add --drafter-weights FOLDER")
            assistant = getattr(drafter.target, "model", None)
        return TransformersEngine(
            getattr(own.target, "model", None), assistant=assistant, prompt_lookup=lookup, num_draft=num_draft,
            eos_token_ids=own.target.eos_token_ids,
        )  # fmt: skip
    if text.startswith(("http://", "https://")):
        from draftproof.audit.endpoint import EndpointEngine

        if not given.get("endpoint_model"):
            raise ParameterError(
                "endpoint_model", None, "the model's name at the endpoint", "add --endpoint-model NAME"
            )
        key = os.environ.get("OPENAI_API_KEY")
        engine = EndpointEngine(
            text, given["endpoint_model"], api_key=key, wants_ids=given.get("wants_ids", True),
            dialect=given.get("endpoint_dialect") or "vllm",
        )  # fmt: skip
        if llm is not None:
            _compare_tokenizers(engine, llm)
        return engine
    from draftproof.audit.engine import as_engine

    return as_engine(imported(text), name=text)


def _compare_tokenizers(engine: EndpointEngine, llm: LLM) -> None:
    """Prompts go out as ids: they must mean the same texts there. Raises ParameterError where they don't."""
    from draftproof.audit.endpoint import check_tokenizer
    from draftproof.audit.engine import EngineError

    try:
        compared = all([check_tokenizer(engine, llm.tokenizer, text) for text in PROMPTS])
    except EngineError as error:
        raise ParameterError(
            "engine", engine.name, "an endpoint with the tokenizer of -m", f"{error}; give -m the weights it serves"
        ) from error
    if not compared:
        note("note: the endpoint has no /tokenize, so that its tokenizer could not be compared with the local one")


def open_drafter(given: Mapping[str, Any], llm: LLM) -> LLM | None:
    """The model of --drafter-weights, plain; its tokens must mean what the target's do. None without the flag."""
    if given.get("drafter_weights") is None:
        return None
    from draftproof.drafters.same_tokenizer import check_same_tokenizer

    own = {name: given.get(name) for name in ("dtype", "device")}
    drafter = open_engine(engine_config({**own, "model": given["drafter_weights"]}), None)
    check_same_tokenizer(llm.tokenizer, drafter.tokenizer)
    return drafter


def imported(text: str) -> Any:
    """The object that "module:name" names, looked for in the working directory too."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise ParameterError(
            "engine",
            text,
            "ours, plain, transformers, transformers:lookup, transformers:assistant, http(s)://…, or module:function",
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ParameterError("engine", text, "an importable module:function", str(error)) from error


def open_scorer(llm: LLM, seed: int, preset: str | None, drafter: LLM | None = None) -> Scorer:
    """A scorer over the weights of `llm`'s target, and of `drafter`'s. preset: of the chain, else the engine's own."""
    from draftproof.audit.ours import OurEngine
    from draftproof.audit.scorer import Scorer
    from draftproof.sampling import SamplerChain

    chain = llm.chain if preset is None else SamplerChain(preset=preset, dtype=llm.config.chain_dtype)
    return Scorer(
        OurEngine(llm).target_model(),
        draft=None if drafter is None else OurEngine(drafter).target_model(),
        chain=chain,
        tokenizer=llm.tokenizer,
        eos_token_ids=llm.target.eos_token_ids,
        seed=seed,
    )


def read_prompts(path: str | None, llm: LLM) -> list[list[int]]:
    """Token ids of the prompts of a file, one a line, or of the built-in ones."""
    if path is None:
        texts = list(PROMPTS)
    else:
        try:
            texts = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ParameterError("prompts", path, "a text file with a prompt in each line", str(error)) from error
        if not texts:
            raise ParameterError("prompts", path, "a file with at least one prompt")
    return [[int(i) for i in llm.tokenizer(text)["input_ids"]] for text in texts]


def settings_of(
    given: Mapping[str, Any], prompts: Sequence[Sequence[int]], *, greedy: bool = False
) -> dict[str, SamplingParams]:
    """The settings of --setting, and with --matrix those of the built-in matrix, its ids taken from the prompts."""
    if not given["matrix"]:
        return read_settings(given["setting"], greedy=greedy)
    from draftproof.audit.matrix import sampler_matrix

    often = Counter(token_id for prompt in prompts for token_id in prompt)
    token_ids = [token_id for token_id, _ in often.most_common(3)]
    if len(token_ids) < 3:
        raise ParameterError("matrix", True, "prompts of at least three different tokens", "add prompts")
    return {**sampler_matrix(token_ids=token_ids, greedy=greedy),
            **(read_settings(given["setting"], greedy=greedy) if given["setting"] else {})}  # fmt: skip


def read_settings(texts: tuple[str, ...], *, greedy: bool = False) -> dict[str, SamplingParams]:
    """Settings from "temperature=0.7 top_p=0.9" texts; the text is the setting's name. Raises ParameterError."""
    from draftproof.params import SamplingParams

    found = {}
    for text in texts or (("temperature=0",) if greedy else ("temperature=1",)):
        values: dict[str, Any] = {}
        for part in re.split(r"[,\s]+(?=[a-z_]+\s*=)", text.strip()):
            match = _PAIR.fullmatch(part)
            if match is None:
                raise ParameterError("setting", text, "NAME=VALUE pairs with commas or spaces between")
            values[match[1]] = _value(match[2])
        if greedy:
            values.setdefault("temperature", 0)
        found[text] = SamplingParams.from_dict(values)
    return found


def read_budget(text: str | None) -> tuple[int | None, float | None]:
    """(tokens, seconds) of "250000", "10m", "90s" or "2h"; one of them is None."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.replace(",", "").replace("_", ""))
    if match is None:
        raise ParameterError("budget", text, "tokens (250000) or a time (90s, 10m, 2h)")
    if not match[2]:
        return int(float(match[1])), None
    return None, float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.startswith("{"):
        pairs = (pair.split(":") for pair in text.strip("{}").split(";") if pair)
        return {int(key): float(value) for key, value in pairs}
    if "|" in text:
        return [_value(part) for part in text.split("|")]
    whole = to_number(text, int)
    return to_number(text, float) if isinstance(whole, str) else whole
