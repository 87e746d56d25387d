"""`bench trees` on real models: tokens per pass and per second for each cell of the grid, on prompts of several kinds.

Each prompt is decoded alone, in every cell with the same seed, so that cells differ by their rule alone; under keyed
they even emit the same text. A figure is a ratio of sums, over prompts; its 95 % interval treats prompts as the sample,
which is what another set of prompts would vary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from draftproof.bench.grid import Cell
from draftproof.bench.ratio import ratio
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.drafters.base import Drafter
    from draftproof.llm import LLM
    from draftproof.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Prompt:
    """kind: chat, code, …, or what the file says."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt in one cell. num_passes: target passes, plain ones too. seconds: of decoding, prefill included."""

    cell: Cell
    kind: str
    num_tokens: int
    num_passes: int
    seconds: float
    num_drafted: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A cell over prompts of a kind ("all": of every kind)."""

    drafter: str
    temperature: float
    top_p: float
    rule: str
    verifier: str
    num_nodes: int
    kind: str
    tokens_per_pass: float
    half_width: float
    tokens_per_second: float
    nodes_per_pass: float
    num_prompts: int

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


def read_prompts(path: Path, num_per_kind: int | None = None) -> list[Prompt]:
    """Lines of JSON with "prompt" and, if there are kinds, "kind" (or "task"). Raises ParameterError."""
    found: list[Prompt] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        for line in filter(None, lines):
            record = json.loads(line)
            found.append(Prompt(str(record.get("kind", record.get("task", "all"))), str(record["prompt"])))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ParameterError(
            "prompts", str(path), 'a file of JSON lines with "prompt" and "kind"', str(error)
        ) from error
    if not found:
        raise ParameterError("prompts", str(path), "a file with at least one prompt")
    if num_per_kind is None:
        return found
    kept: dict[str, list[Prompt]] = {}
    for prompt in found:
        kept.setdefault(prompt.kind, []).append(prompt)
    return [prompt for prompts in kept.values() for prompt in prompts[:num_per_kind]]


def measure(
    plain: LLM,
    drafter: Drafter,
    cells: Iterable[Cell],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    method: dict[str, Any],
    advance: Callable[[], None] = lambda: None,
) -> Iterator[Measured]:
    """Decodes every prompt in every cell.

    plain: an engine over the target, whose target and tokenizer are used. drafter: chains of it, and what trees are
    grown from. method: the fields `method` and `model` of the configuration. params: their seed is the first prompt's.
    """
    from dataclasses import replace

    from draftproof.config import SpeculativeConfig
    from draftproof.drafters.tree import tree_drafter_of
    from draftproof.llm import LLM

    many = [replace(params, seed=(params.seed or 0) + index) for index in range(len(prompts))]
    ids = [prompt_ids(plain, prompt.text) for prompt in prompts]
    for cell in cells:
        config = SpeculativeConfig(**method, **cell.fields)
        used = drafter if config.topology == "chain" else tree_drafter_of(drafter, config)
        llm = LLM.from_target(plain.target, plain.tokenizer, speculative_config=config, drafter=used)
        for prompt, token_ids, own in zip(prompts, ids, many, strict=True):
            began = perf_counter()
            [output] = llm.generate([token_ids], own)
            seconds = perf_counter() - began
            metrics = output.metrics.speculative_decoding or {}
            num_tokens = len(output.outputs[0].token_ids)
            num_passes = metrics["num_spec_steps"] + metrics["num_plain_steps"]
            yield Measured(cell, prompt.kind, num_tokens, num_passes, seconds, metrics["num_draft_tokens"])
            advance()


def prompt_ids(llm: LLM, text: str) -> list[int]:
    """A prompt's token ids, as a chat where the model has a template."""
    if llm.has_chat_template:
        return llm.encode_chat([{"role": "user", "content": text}])
    return [int(i) for i in llm.tokenizer(text)["input_ids"]]


def figures(measured: Sequence[Measured], drafter: str, params: SamplingParams) -> list[Figure]:
    """A figure for each cell and kind, and for all kinds together."""
    kinds = list(dict.fromkeys(item.kind for item in measured))
    by_cell: dict[tuple[str, int], list[Measured]] = {}
    for item in measured:
        by_cell.setdefault((item.cell.rule, item.cell.num_nodes), []).append(item)
    found = []
    for items in by_cell.values():
        for kind in [*kinds, "all"] if len(kinds) > 1 else ["all"]:
            own = [item for item in items if kind in ("all", item.kind)]
            if own:
                found.append(_figure(own, kind, drafter, params))
    return found


def _figure(items: Sequence[Measured], kind: str, drafter: str, params: SamplingParams) -> Figure:
    rate, half_width = ratio([(item.num_tokens, item.num_passes) for item in items])
    passes = sum(item.num_passes for item in items)
    cell = items[0].cell
    return Figure(
        drafter=drafter,
        temperature=params.temperature,
        top_p=params.top_p,
        rule=cell.rule,
        verifier=cell.verifier,
        num_nodes=cell.num_nodes,
        kind=kind,
        tokens_per_pass=rate,
        half_width=half_width,
        tokens_per_second=sum(item.num_tokens for item in items) / sum(item.seconds for item in items),
        nodes_per_pass=sum(item.num_drafted for item in items) / passes,
        num_prompts=len(items),
    )


def advice(found: Sequence[Figure]) -> list[str]:
    """For each drafter and setting: the best keyed rule, the best exact-law rule, and what replay costs or gains."""
    said = []
    settings = dict.fromkeys((item.drafter, item.temperature, item.top_p) for item in found)
    for drafter, temperature, top_p in settings:
        own = [
            item
            for item in found
            if item.kind == "all" and (item.drafter, item.temperature, item.top_p) == (drafter, temperature, top_p)
        ]
        keyed = max((item for item in own if item.verifier == "keyed"), key=lambda item: item.tokens_per_pass)
        others = [item for item in own if item.verifier != "keyed"]
        where = f"{drafter}, T={temperature:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")
        text = (
            f"{where}: replay at {keyed.tokens_per_pass:.2f} tokens per pass by {keyed.rule}, {keyed.num_nodes} nodes"
        )
        if others:
            best = max(others, key=lambda item: item.tokens_per_pass)
            gain = 100 * (keyed.tokens_per_pass / best.tokens_per_pass - 1)
            text += (
                f"; the best exact-law rule, {best.rule} with {best.num_nodes} nodes, has {best.tokens_per_pass:.2f}: "
                f"replay {'gains' if gain >= 0 else 'costs'} {abs(gain):.0f} %"
            )
        fastest = max(own, key=lambda item: item.tokens_per_second)
        said.append(f"{text}; fastest here: {fastest.rule}, {fastest.num_nodes} nodes")
    return said
