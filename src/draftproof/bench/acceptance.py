"""`bench acceptance`: tokens per pass by kind of prompt, temperature, method, verifier and draft length.

All prompts of a setting are decoded together, as many at once as the target has slots; which tokens a draft has right
does not depend on that. Tokens per pass count the bonus token, and passes without a draft count as passes. A figure is
a ratio of sums over prompts, see `ratio.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from draftproof.bench.ratio import ratio
from draftproof.bench.trees import Prompt, prompt_ids

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig
    from draftproof.drafters.base import Drafter
    from draftproof.llm import LLM
    from draftproof.outputs import RequestOutput
    from draftproof.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Decoded:
    """One prompt. accepted: (drafted, accepted) -> number of passes. token_ids: what was emitted."""

    kind: str
    token_ids: tuple[int, ...]
    num_passes: int
    accepted: Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class AcceptanceFigure:
    """Prompts of a kind ("all": of every kind) under one setting.

    by_place: entry j is the share of drafts longer than j whose tokens 0 to j were all accepted. speedup: tokens per
    second over plain decoding's, and speedup_half_width; None where speed was not measured.
    """

    method: str
    verifier: str
    draft_length: str
    num_speculative_tokens: int
    temperature: float
    top_p: float
    kind: str
    num_prompts: int
    num_tokens: int
    tokens_per_pass: float
    half_width: float
    by_place: tuple[float, ...]
    speedup: float | None = None
    speedup_half_width: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


def seeded(params: SamplingParams, count: int) -> list[SamplingParams]:
    """One for each prompt, with seeds that follow each other."""
    return [replace(params, seed=(params.seed or 0) + index) for index in range(count)]


def decode(
    plain: LLM,
    drafter: Drafter,
    config: SpeculativeConfig,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    advance: Callable[[int, int], None] | None = None,
) -> list[Decoded]:
    """Every prompt, with drafts. plain: an engine over the target, whose target and tokenizer are used. params: their
    seed is the first prompt's. advance: called with (prompts done, prompts in all)."""
    from draftproof.llm import LLM

    llm = LLM.from_target(plain.target, plain.tokenizer, speculative_config=config, drafter=drafter)
    ids = [prompt_ids(plain, prompt.text) for prompt in prompts]
    outputs = llm.generate(ids, seeded(params, len(prompts)), progress=advance)
    return [decoded(prompt.kind, output) for prompt, output in zip(prompts, outputs, strict=True)]


def decoded(kind: str, output: RequestOutput) -> Decoded:
    """What an output's acceptance record says."""
    record = output.metrics.speculative_decoding or {}
    accepted = {
        (int(drafted), int(number)): int(count)
        for drafted, counts in record["acceptance_histogram_by_draft_length"].items()
        for number, count in counts.items()
    }
    num_passes = record["num_spec_steps"] + record["num_plain_steps"]
    return Decoded(kind, tuple(output.outputs[0].token_ids), num_passes, accepted)


def figures(found: Sequence[Decoded], config: SpeculativeConfig, params: SamplingParams) -> list[AcceptanceFigure]:
    """One for each kind, and one for all kinds together."""
    kinds = list(dict.fromkeys(item.kind for item in found))
    made = []
    for kind in [*kinds, "all"] if len(kinds) > 1 else ["all"]:
        own = [item for item in found if kind in ("all", item.kind)]
        rate, half_width = ratio([(len(item.token_ids), item.num_passes) for item in own])
        made.append(
            AcceptanceFigure(
                method=config.method,
                verifier=config.verifier,
                draft_length=config.draft_length,
                num_speculative_tokens=config.num_speculative_tokens,
                temperature=params.temperature,
                top_p=params.top_p,
                kind=kind,
                num_prompts=len(own),
                num_tokens=sum(len(item.token_ids) for item in own),
                tokens_per_pass=rate,
                half_width=half_width,
                by_place=_by_place(own),
            )
        )
    return made


def _by_place(found: Sequence[Decoded]) -> tuple[float, ...]:
    total: Counter[tuple[int, int]] = Counter()
    for item in found:
        total.update(item.accepted)
    longest = max((drafted for drafted, _ in total), default=0)
    shares = []
    for place in range(longest):
        long_enough = {key: count for key, count in total.items() if key[0] > place}
        right = sum(count for (_, accepted), count in long_enough.items() if accepted > place)
        shares.append(right / sum(long_enough.values()))
    return tuple(shares)
