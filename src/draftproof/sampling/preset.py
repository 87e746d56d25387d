"""What a preset is: one engine's order of the steps, its tie rules, and the fields that it doesn't have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from draftproof.errors import ParameterError
from draftproof.sampling.row_params import RowParams
from draftproof.sampling.steps import FIELD_OF, PENALTY_STEPS, Step
from draftproof.sampling.top_k import TopKTies
from draftproof.sampling.top_p import TopPTies
from draftproof.sampling.typical_p import TypicalTies
from draftproof.sampling.xtc import XtcTies


class Plan(NamedTuple):
    """What one request's rows go through. changes: bias, processors, penalties, DRY. filters: the temperature too."""

    changes: tuple[Step, ...]
    filters: tuple[Step, ...]


@dataclass(frozen=True)
class Preset:
    """The order and the rules of one engine's sampler.

    order: the steps, first to last. top_k_ties, top_p_ties, typical_ties, xtc_ties: see those filters' files.
    windowed: penalties look at the last `penalty_window` tokens, prompt included; otherwise repetition
    looks at prompt and output, frequency and presence at the output.
    bad_words_see_prompt: whether a bad word may begin in the prompt.
    refused: fields that the engine doesn't have, each with what to do.
    refused_with_mirostat: fields that the engine passes over once mirostat is on.
    engine_defaults: for information; what holds here are SamplingParams' own defaults.
    """

    name: str
    order: tuple[Step, ...]
    top_k_ties: TopKTies
    top_p_ties: TopPTies
    engine_defaults: str
    typical_ties: TypicalTies = TypicalTies.KEPT
    xtc_ties: XtcTies = XtcTies.ONE
    windowed: bool = False
    penalty_window: int | None = None
    bad_words_see_prompt: bool = False
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    refused_with_mirostat: tuple[str, ...] = ()
    _plans: WeakKeyDictionary[RowParams, Plan] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    @property
    def temperature_first(self) -> bool:
        """Whether filters look at the law after temperature, or at the law at T = 1."""
        return self.order.index(Step.TEMPERATURE) < self.order.index(Step.TOP_P)

    def check(self, row: RowParams) -> None:
        """Raise ParameterError if `row` sets what this preset's engine doesn't have."""
        for name, hint in self.refused.items():
            if row.is_set(name):
                raise ParameterError(name, row.given(name), f"left unset under the preset {self.name!r}", hint)
        if row.is_set("mirostat"):
            for name in self.refused_with_mirostat:
                if row.is_set(name):
                    allowed = f"left unset with mirostat under the preset {self.name!r}"
                    raise ParameterError(name, row.given(name), allowed, "that engine passes over it then; use 'vllm'")
        if self.name == "hf":
            ending = set(row.ending_ids.tolist()).intersection(row.banned_ids.tolist())
            if ending:
                raise ParameterError(
                    "bad_words",
                    sorted(ending),
                    "no EOS id alone under the preset 'hf'",
                    "transformers drops such an entry; use the preset 'vllm' or a logit_bias of -inf",
                )

    def plan(self, row: RowParams) -> Plan:
        """The steps that `row` turns on, in order. Made, and `row` checked, when first asked for."""
        plan = self._plans.get(row)
        if plan is None:
            self.check(row)
            plan = self._plans[row] = self._planned(row)
        return plan

    def _planned(self, row: RowParams) -> Plan:
        penalized = any(row.is_set(f"{name}_penalty") for name in ("repetition", "frequency", "presence"))
        on = {
            Step.BIAS: row.is_set("logit_bias"),
            Step.CUSTOM: row.is_set("logits_processors"),
            Step.DRY: row.is_set("dry_multiplier"),
            **dict.fromkeys(PENALTY_STEPS, penalized),
        }
        filters = {Step.TEMPERATURE, *(step for step, name in FIELD_OF.items() if row.is_set(name))}
        return Plan(
            tuple(step for step in self.order if on.get(step)), tuple(step for step in self.order if step in filters)
        )

    def describe(self) -> str:
        """The chain as text: order, ties, what penalties look at, what is refused, the engine's defaults."""
        lines = [f"sampler chain {self.name!r}, in this order:"]
        lines += [f"  {number}. {step.value}{self._detail(step)}" for number, step in enumerate(self.order, 1)]
        law = "after temperature" if self.temperature_first else "at T = 1; temperature comes last"
        lines.append(f"filters look at the law {law}; each sees what the one before it left")
        lines.append("off: top_k 0 or -1, top_p 1, min_p 0, repetition_penalty 1, frequency and presence_penalty 0")
        lines.append("     typical_p 1; every other sampler 0")
        lines.append(f"refused: {', '.join(self.refused) or 'nothing'}")
        if self.refused_with_mirostat:
            lines.append(f"refused with mirostat: {', '.join(self.refused_with_mirostat)}")
        lines.append(f"the engine's own defaults, which are not applied here: {self.engine_defaults}")
        return "\n".join(lines)

    def _detail(self, step: Step) -> str:
        if step is Step.TOP_K:
            return f": keeps the k largest; {self.top_k_ties.value}"
        if step is Step.TOP_P:
            return f"; {self.top_p_ties.value}"
        if step is Step.TYPICAL_P:
            return f"; {self.typical_ties.value}"
        if step is Step.XTC:
            return f"; {self.xtc_ties.value}"
        if step in PENALTY_STEPS:
            return f" ({self._seen()})"
        if step is Step.BAD_WORDS:
            return " (matched in prompt and output)" if self.bad_words_see_prompt else " (matched in the output)"
        if step is Step.TEMPERATURE and "dynatemp_range" not in self.refused:
            return "; with dynatemp_range, a value from the entropy of what is left here"
        return ""

    def _seen(self) -> str:
        if not self.windowed:
            if Step.REPETITION in self.order:
                return "looks at prompt and output"
            return "repetition looks at prompt and output, the others at the output"
        window = "all tokens" if self.penalty_window is None else f"the last {self.penalty_window} tokens"
        return f"look at {window}, prompt included"
