"""Scored mode over tables: verdicts, endings, refusals, journals, interrupts, rounding.

Error budget: every audit here runs once at a family-wise 1e-4, with fixed seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from draftproof import ParameterError, SamplingParams
from draftproof.audit.battery import Layout
from draftproof.audit.engine import EngineError, Generation, Refusal, Request, as_engine
from draftproof.audit.models import TableModel
from draftproof.audit.mutants.sampler import ExactSampler, instance_tables
from draftproof.audit.mutants.verifiers import ResidualIsTarget
from draftproof.audit.plan import make_plan
from draftproof.audit.scored import audit_scored
from draftproof.audit.scorer import Scorer
from draftproof.audit.verdict import Verdict
from draftproof.verify.tables import LawTable
from tests.audit.toys import EIGHT, PROMPTS, SamplerEngine, TableEngine, table_scorer


def test_an_exact_engine_is_consistent_and_says_what_it_could_have_missed() -> None:
    audit = audit_scored(TableEngine(), table_scorer(knows_draft=True), PROMPTS, num_tokens=6000)
    assert audit.verdict is Verdict.CONSISTENT and audit.exit_code == 0 and not audit.findings
    bound = audit.numbers["its upper bound, confidence 0.999"]
    assert audit.numbers["pooled deviation, 8 bins by p"] < bound < 0.1
    assert 0 < audit.numbers["bias that could be missed, any direction along the order"] < 0.1
    assert "top_p" in (audit.chain or "")
    json.dumps(audit.to_dict())


@pytest.mark.parametrize("warmth", [0.8, 1.25])
def test_another_temperature_is_not_lossless(warmth: float) -> None:
    audit = audit_scored(TableEngine(warmth=warmth), table_scorer(), PROMPTS, num_tokens=20_000)
    assert audit.verdict is Verdict.NOT_LOSSLESS and audit.exit_code == 1
    assert audit.numbers["tokens"] < 20_000, "evidence ends the run early"
    assert audit.reproduction is not None and "seed = " in audit.reproduction


def test_to_the_end_names_statistics_and_effects() -> None:
    engine = SamplerEngine(ResidualIsTarget(*instance_tables("random")))
    audit = audit_scored(engine, table_scorer(knows_draft=True), PROMPTS, num_tokens=12_000, stop_early=False)
    named = {finding.what for finding in audit.findings}
    assert audit.verdict is Verdict.NOT_LOSSLESS and {"pit by p/q", "q > p"} <= named


def test_the_exact_sampler_passes_with_its_pass_offsets() -> None:
    engine = SamplerEngine(ExactSampler(*instance_tables("random")))
    audit = audit_scored(engine, table_scorer(knows_draft=True), PROMPTS, num_tokens=8000)
    assert audit.verdict is Verdict.CONSISTENT
    tokens = {row[1] for row in audit.tables[0].rows}
    assert "pass offset 0" in tokens and "first token" in tokens


def test_keyed_engines_get_no_strata_by_offset() -> None:
    audit = audit_scored(TableEngine(keyed=True), table_scorer(), PROMPTS, num_tokens=1000)
    assert not any(str(row[1]).startswith("pass offset") for row in audit.tables[0].rows)
    assert any("where in a pass" in limit for limit in audit.limits)


def test_distinct_seeds_and_the_same_ones_again() -> None:
    seen: list[int] = []

    def engine(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
        seen.append(seed)
        return [0] * (params.max_tokens or 0)

    for _ in range(2):
        audit_scored(engine, table_scorer(), PROMPTS, num_tokens=2000, stop_early=False)
    half = len(seen) // 2
    assert len(set(seen[:half])) == half and seen[:half] == seen[half:]


def test_a_table_of_whole_contexts_scores_too() -> None:
    table = LawTable(3, lambda context: [1 + (len(context) + token) % 3 for token in range(3)])

    def engine(prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
        random, text = np.random.default_rng(seed), list(prompt_ids)
        for _ in range(params.max_tokens or 0):
            law = np.array([float(p) for p in table.probs(tuple(text))])
            text.append(int(random.choice(3, p=law)))
        return text[len(prompt_ids) :]

    audit = audit_scored(engine, Scorer(TableModel(table)), [[0], [1]], num_tokens=1500, max_tokens=8)
    assert audit.verdict is Verdict.CONSISTENT


@dataclass
class Settings(TableEngine):
    """Honours temperature alone: refuses top_k, ignores min_p."""

    def output(self, request: Request) -> tuple[int, ...]:
        if request.params.top_k:
            raise Refusal("no top_k here")
        return super().output(request)


@pytest.mark.parametrize("mixed", [False, True])
def test_refused_settings_are_listed_and_ignored_ones_are_findings(mixed: bool) -> None:
    settings = {"plain": SamplingParams(), "top_k": SamplingParams(top_k=2)}
    audit = audit_scored(Settings(), table_scorer(), PROMPTS, settings=settings, num_tokens=3000, mixed=mixed)
    assert audit.verdict is Verdict.CONSISTENT and audit.refused == (("top_k", "no top_k here"),)
    settings = {"plain": SamplingParams(), "min_p": SamplingParams(min_p=0.5)}
    audit = audit_scored(Settings(), table_scorer(), PROMPTS, settings=settings, num_tokens=3000, mixed=mixed)
    assert audit.verdict is Verdict.NOT_LOSSLESS
    assert any(finding.where.startswith("min_p") for finding in audit.findings)
    assert any("min_p not applied" in cause.name for cause in audit.causes)


def test_every_setting_refused_is_inconclusive() -> None:
    audit = audit_scored(Settings(), table_scorer(), PROMPTS, settings={"k": SamplingParams(top_k=2)}, num_tokens=1000)
    assert audit.verdict is Verdict.INCONCLUSIVE and audit.exit_code == 3


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ((1, 0, 2), "tokens after the ending token 0"),
        ((1, 2), "an end without a reason"),
        ((1,) * 9, "more than max_tokens"),
    ],
)
def test_wrong_endings_are_findings(output: tuple[int, ...], words: str) -> None:
    scorer = Scorer(TableModel(EIGHT), eos_token_ids=(0,))
    audit = audit_scored(lambda ids, params, seed: output, scorer, PROMPTS, num_tokens=100, max_tokens=8)
    assert audit.verdict is Verdict.NOT_LOSSLESS and any(words in finding.what for finding in audit.findings)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("text", "token ids were expected"),
        ([99], "another model"),
        (([1, 2], [0.0]), "1 logprobs for 2 tokens"),
        ([], "no token"),
    ],
)
def test_nonsense_is_an_error_with_words_and_inconclusive(answer: object, words: str) -> None:
    audit = audit_scored(lambda ids, params, seed: answer, table_scorer(), PROMPTS, num_tokens=100, max_tokens=8)
    assert audit.verdict is Verdict.INCONCLUSIVE and words in audit.summary


def test_an_engine_that_fails_keeps_what_came_before() -> None:
    calls = iter(range(1000))
    plain = TableEngine()

    def engine(ids: Sequence[int], params: SamplingParams, seed: int) -> tuple[int, ...]:
        if next(calls) >= 40:
            raise EngineError("the engine went down")
        return plain.output(Request(tuple(ids), params, seed))

    audit = audit_scored(engine, table_scorer(), PROMPTS, num_tokens=100_000, max_tokens=32)
    assert audit.verdict is Verdict.INCONCLUSIVE and "went down" in audit.summary
    assert audit.numbers["tokens"] == 32 * 32


def test_interrupt_and_resume_give_the_result_of_one_run(tmp_path: Path) -> None:
    journal = str(tmp_path / "run.jsonl")
    asked = []

    class Interrupted(TableEngine):
        def generate(self, requests: Sequence[Request]) -> list[Generation]:
            asked.append(len(requests))
            if len(asked) == 4:
                raise KeyboardInterrupt
            return super().generate(requests)

    options = {"num_tokens": 4000, "max_tokens": 32, "seed": 3}
    first = audit_scored(Interrupted(), table_scorer(), PROMPTS, journal=journal, **options)
    assert first.verdict is Verdict.INCONCLUSIVE and first.numbers["ended by"] == "Ctrl-C"
    with open(journal, "a", encoding="utf-8") as stream:
        stream.write('{"number": 48, "token_ids": [1, 2')
    resumed = audit_scored(Interrupted(), table_scorer(), PROMPTS, journal=journal, **options)
    whole = audit_scored(TableEngine(), table_scorer(), PROMPTS, **options)
    assert resumed.tables == whole.tables and resumed.findings == whole.findings
    with pytest.raises(ParameterError, match="this very run"):
        audit_scored(TableEngine(), table_scorer(), PROMPTS, journal=journal, **{**options, "seed": 4})


def test_rounding_is_a_number_apart() -> None:
    """Logits off by up to .02 are excused where a logit error of .03 is declared; a filter's edge is counted."""
    random = np.random.default_rng(0)
    moved = EIGHT * np.exp(random.uniform(-0.02, 0.02, EIGHT.shape))
    moved /= moved.sum(1, keepdims=True)
    audit = audit_scored(TableEngine(target=moved), table_scorer(), PROMPTS, num_tokens=20_000, logit_error=0.03)
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.numbers["total variation allowed for rounding, per token"] == 0.03


def test_reported_logprobs_are_compared() -> None:
    plain = TableEngine()

    def engine(ids: Sequence[int], params: SamplingParams, seed: int) -> tuple[tuple[int, ...], list[float]]:
        output = plain.output(Request(tuple(ids), params, seed))
        before = (ids[-1], *output[:-1])
        return output, [float(np.log(EIGHT[last, token])) + 0.5 for last, token in zip(before, output, strict=True)]

    audit = audit_scored(engine, table_scorer(), PROMPTS, num_tokens=600, max_tokens=8)
    assert audit.numbers["reported logprobs, median error, nats"] == pytest.approx(0.5, abs=1e-6)


def test_bad_arguments() -> None:
    with pytest.raises(ParameterError, match="greedy mode"):
        audit_scored(TableEngine(), table_scorer(), PROMPTS, settings={"t0": SamplingParams(temperature=0.0)})
    with pytest.raises(ParameterError, match="prompts"):
        audit_scored(TableEngine(), table_scorer(), [])
    with pytest.raises(ParameterError, match="engine"):
        as_engine(3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="detect"):
        make_plan(Layout(), num_tokens=5, detect=0.1)
    with pytest.raises(ParameterError, match="draft"):
        Scorer(TableModel(EIGHT), draft=TableModel(np.eye(3)))


def test_the_plan_turns_detect_into_tokens_and_back() -> None:
    layout = Layout(knows_draft=True)
    plan = make_plan(layout, detect=0.01)
    back = make_plan(layout, num_tokens=plan.num_tokens)
    assert back.detectable_any == pytest.approx(0.01, rel=1e-3) and 100_000 < plan.num_tokens < 250_000
    assert make_plan(layout, detect=0.02).num_tokens == pytest.approx(plan.num_tokens / 4, rel=1e-3)
