"""Engines that try to fool the audit: each is biased somewhere and exact where it expects to be looked at.

The verdict on each is kept here, also where the audit is fooled: docs/reading-an-audit.md says so.
Error budget: family-wise 1e-4 for each audit, fixed seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from draftproof import SamplingParams
from draftproof.audit.engine import Request
from draftproof.audit.paired import audit_paired
from draftproof.audit.scored import audit_scored
from draftproof.audit.scores import Floats
from draftproof.audit.verdict import Audit, Verdict
from tests.audit.toys import PROMPTS, TableEngine, table_scorer

LONG_PROMPTS = [[token] * 12 for token in range(8)]


@dataclass
class Cheat(TableEngine):
    """Sharpens the law wherever `is_watched` says that nobody looks."""

    name: str = "cheat"

    def law(self, request: Request, output: Sequence[int], position: int) -> Floats:
        right = super().law(request, output, position)
        if self.is_watched(request, output, position):
            return right
        sharp = right**1.6
        return np.asarray(sharp / sharp.sum())

    def is_watched(self, request: Request, output: Sequence[int], position: int) -> bool:
        return True


class ExactFirstTokens(Cheat):
    def is_watched(self, request: Request, output: Sequence[int], position: int) -> bool:
        return position < 4


class ExactAtTemperatureOne(Cheat):
    def is_watched(self, request: Request, output: Sequence[int], position: int) -> bool:
        return request.params.temperature == 1.0


class ExactWithLogprobs(Cheat):
    def is_watched(self, request: Request, output: Sequence[int], position: int) -> bool:
        return request.params.logprobs is not None


class ExactForShortPrompts(Cheat):
    def is_watched(self, request: Request, output: Sequence[int], position: int) -> bool:
        return len(request.prompt_ids) < 8


class ExactForSomeSeeds(Cheat):
    """Biased for one seed in three."""

    def is_watched(self, request: Request, output: Sequence[int], position: int) -> bool:
        return request.seed % 3 != 0


@dataclass
class CancelsItself(Cheat):
    """Sharpens one row and flattens the next, so that pooled counts of the argmax balance."""

    def law(self, request: Request, output: Sequence[int], position: int) -> Floats:
        right = TableEngine.law(self, request, output, position)
        power = 1.8 if position % 2 else 0.55
        moved = right**power
        return np.asarray(moved / moved.sum())


@dataclass
class HidesInBins(Cheat):
    """Swaps mass between two tokens that are neighbours in the order of p, by turns: small, and alternating."""

    def law(self, request: Request, output: Sequence[int], position: int) -> Floats:
        right = TableEngine.law(self, request, output, position).copy()
        order = np.argsort(-right)
        moved = 0.9 * right[order[1]] * (1 if position % 2 else -1) * 0.02
        right[order[1]] -= moved
        right[order[2]] += moved
        return np.asarray(np.maximum(right, 0) / np.maximum(right, 0).sum())


def scored(engine: TableEngine, settings: dict[str, SamplingParams] | None = None, num_tokens: int = 12_000) -> Audit:
    return audit_scored(engine, table_scorer(knows_draft=True), [*PROMPTS, *LONG_PROMPTS], settings=settings,
                        num_tokens=num_tokens)  # fmt: skip


@pytest.mark.parametrize(
    "engine",
    [ExactFirstTokens(), ExactForShortPrompts(), ExactForSomeSeeds(), CancelsItself()],
    ids=lambda e: type(e).__name__,
)
def test_attacks_that_fail_under_the_defaults(engine: TableEngine) -> None:
    assert scored(engine).verdict is Verdict.NOT_LOSSLESS


@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        (ExactAtTemperatureOne(), {"temperature 0.7": SamplingParams(temperature=0.7)}),
        (ExactWithLogprobs(), {"plain": SamplingParams()}),
    ],
    ids=["ExactAtTemperatureOne", "ExactWithLogprobs"],
)
def test_attacks_that_fail_under_the_right_setting(engine: TableEngine, settings: dict[str, SamplingParams]) -> None:
    assert scored(engine, settings).verdict is Verdict.NOT_LOSSLESS


def test_attacks_that_work_where_the_setting_is_the_watched_one() -> None:
    """An audit says nothing about settings that it did not ask for."""
    assert scored(ExactAtTemperatureOne()).verdict is Verdict.CONSISTENT
    watched = {"logprobs": SamplingParams(logprobs=1)}
    assert scored(ExactWithLogprobs(), watched).verdict is Verdict.CONSISTENT


def test_the_first_tokens_alone_fool_paired_mode_with_a_short_length() -> None:
    options = {"num_samples": 40, "alpha": 1e-3}
    short = audit_paired(ExactFirstTokens(), TableEngine(), PROMPTS, length=4, **options)
    assert short.verdict is Verdict.CONSISTENT
    assert any("after the first 4 tokens" in limit for limit in short.limits)


def test_a_bias_below_the_plans_smallest_is_missed_and_the_report_says_how_small_that_is() -> None:
    audit = scored(HidesInBins(), num_tokens=4000)
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.numbers["bias that could be missed, any direction along the order"] > 0.005
