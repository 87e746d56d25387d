"""Speed against plain decoding: one prompt at a time, both ways in turn on the same target, the same seed.

Under keyed both ways emit the same tokens and the ratio is of the seconds alone; that they are the same is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

from draftproof.bench.acceptance import AcceptanceFigure, seeded
from draftproof.bench.ratio import ratio
from draftproof.bench.trees import Prompt, prompt_ids
from draftproof.errors import DraftproofError

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig
    from draftproof.drafters.base import Drafter
    from draftproof.llm import LLM
    from draftproof.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Timed:
    """One prompt both ways: seconds a token, of the whole request."""

    kind: str
    plain: float
    drafted: float


def time_both(
    plain: LLM,
    drafter: Drafter,
    config: SpeculativeConfig,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    advance: Callable[[int, int], None] = lambda done, count: None,
) -> list[Timed]:
    """Every prompt both ways, the order of the two changing from prompt to prompt; the first prompt once more before,
    unmeasured. Raises DraftproofError where the tokens differ under keyed."""
    from draftproof.llm import LLM

    drafting = LLM.from_target(plain.target, plain.tokenizer, speculative_config=config, drafter=drafter)
    ids = [prompt_ids(plain, prompt.text) for prompt in prompts]
    for llm in (plain, drafting):
        llm.generate([ids[0]], params)
    found = []
    for index, (prompt, token_ids, own) in enumerate(zip(prompts, ids, seeded(params, len(prompts)), strict=True)):
        seconds, emitted = {}, {}
        for name in ("plain", "drafted") if index % 2 else ("drafted", "plain"):
            began = perf_counter()
            [output] = (plain if name == "plain" else drafting).generate([token_ids], own)
            emitted[name] = list(output.outputs[0].token_ids)
            seconds[name] = (perf_counter() - began) / len(emitted[name])
        if config.verifier == "keyed" and emitted["plain"] != emitted["drafted"]:
            raise DraftproofError(
                f"prompt {index} gives other tokens with drafts than without, under keyed; without --invariant "
                "forwards over one row and over many round differently: set it, or report this"
            )
        found.append(Timed(prompt.kind, seconds["plain"], seconds["drafted"]))
        advance(index + 1, len(prompts))
    return found


def with_speed(figures: Sequence[AcceptanceFigure], timed: Sequence[Timed]) -> list[AcceptanceFigure]:
    """The figures with the speed of the prompts that they are over."""
    made = []
    for figure in figures:
        own = [(item.plain, item.drafted) for item in timed if figure.kind in ("all", item.kind)]
        speedup, half_width = ratio(own)
        made.append(replace(figure, speedup=speedup, speedup_half_width=half_width))
    return made
