"""The engines of every mode: the wrong one is caught, its right twin passes. And the self-audit's own bookkeeping.

Error budget: chains in scored mode run at 1e-4, pairs at 1e-3, one run each with fixed seeds; the other modes have no
randomness to be wrong about.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof import ParameterError, SamplingParams
from draftproof.audit import selftest
from draftproof.audit.engine import Generation, Refusal, Request
from draftproof.audit.greedy import audit_greedy
from draftproof.audit.mutants.run import Trial, trials
from draftproof.audit.mutants.sampler import ExactSampler
from draftproof.audit.paired import audit_paired
from draftproof.audit.replay import audit_replay, compare
from draftproof.audit.verdict import Verdict
from tests.audit.toys import EIGHT, PROMPTS, TableEngine, table_scorer


@pytest.mark.parametrize("trial", trials(3500), ids=lambda trial: trial.name)
def test_the_wrong_engine_is_caught_and_the_right_one_is_not(trial: Trial) -> None:
    assert trial.run(True, 1).verdict is Verdict.NOT_LOSSLESS
    if trial.mode != "scored" or trial.name.startswith("penalty state"):
        assert trial.run(False, 1).verdict is Verdict.CONSISTENT


def test_there_are_as_many_mutants_as_promised() -> None:
    from draftproof.audit.mutants import SAMPLERS
    from draftproof.verify.mutants import all_mutants

    assert len(SAMPLERS) + len(trials()) >= 45
    assert len(all_mutants()) >= 59


def test_a_survivor_and_a_false_alarm_are_findings_of_the_self_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "all_mutants", lambda: ())
    monkeypatch.setattr(selftest, "trials", lambda num_tokens: [])
    monkeypatch.setattr(selftest, "SAMPLERS", (ExactSampler,))
    audit = selftest.run_self(quick=True)
    assert audit.verdict is Verdict.NOT_LOSSLESS and audit.findings[0].what == "a mutant survives"
    wrong = lambda is_wrong, seed: audit_greedy(lambda *_: [0] * 8, table_scorer(), PROMPTS, max_tokens=8)  # noqa: E731
    monkeypatch.setattr(selftest, "SAMPLERS", ())
    monkeypatch.setattr(selftest, "trials", lambda num_tokens: [Trial("always wrong", "", "greedy", wrong)])
    audit = selftest.run_self(quick=True)
    assert [finding.what for finding in audit.findings] == ["a right engine is called not lossless"]


def test_greedy_near_ties_are_excused_and_counted() -> None:
    near = EIGHT.copy()
    near[:, :2] = near[:, :1]
    near[:, 1] *= 1 + 1e-6
    near /= near.sum(1, keepdims=True)
    first = TableEngine(target=near * (1 + 1e-3 * (np.arange(8) == 0)))
    tolerant = audit_greedy(first, table_scorer(target=near), PROMPTS, logit_error=1e-2)
    strict = audit_greedy(first, table_scorer(target=near), PROMPTS, logit_error=1e-8)
    assert tolerant.verdict is Verdict.CONSISTENT and strict.verdict is Verdict.NOT_LOSSLESS
    assert tolerant.numbers["rows above 0"] > 0
    with pytest.raises(ParameterError, match="greedy mode"):
        audit_greedy(first, table_scorer(), PROMPTS, settings={"warm": SamplingParams()})


def test_greedy_knows_penalties() -> None:
    params = {"penalised": SamplingParams(temperature=0.0, frequency_penalty=2.0, max_tokens=12)}
    audit = audit_greedy(TableEngine(), table_scorer(), PROMPTS, settings=params)
    assert audit.verdict is Verdict.NOT_LOSSLESS, "the toy engine ignores penalties"


def test_a_refused_setting_hides_none_of_those_after_it() -> None:
    class Refuses(TableEngine):
        def generate(self, requests: Sequence[Request]) -> list[Generation]:
            if requests[0].params.top_k == 3:
                raise Refusal("no top_k")
            return super().generate(requests)

    wrong = Refuses(target=EIGHT[:, ::-1].copy())
    greedy = {"refused": SamplingParams(temperature=0.0, top_k=3), "plain": SamplingParams(temperature=0.0)}
    audit = audit_greedy(wrong, table_scorer(), PROMPTS, settings=greedy)
    assert audit.verdict is Verdict.NOT_LOSSLESS and dict(audit.refused) == {"refused": "no top_k"}
    drawn = {"refused": SamplingParams(top_k=3), "plain": SamplingParams()}
    audit = audit_replay(wrong, TableEngine(), PROMPTS, settings=drawn, num_seeds=1)
    assert audit.verdict is Verdict.NOT_LOSSLESS and dict(audit.refused) == {"refused": "no top_k"}


def test_replay_margins_use_the_engines_noise() -> None:
    """Two tokens whose perturbed scores differ by 1e-6 are a near tie under a logit error of 1e-5, and a defect
    without.
    """
    request = Request((2,), SamplingParams(), 5)
    log_p = np.log(EIGHT[2])

    def noise(seed: int, position: int, vocab_size: int) -> np.ndarray:
        field = np.zeros(vocab_size)
        field[1] = log_p[0] - log_p[1] + 1e-6
        return field

    difference = compare(request, (0, 3), (1, 3), table_scorer(), noise)
    assert difference is not None and difference.margin == pytest.approx(1e-6, rel=0.3)
    assert compare(request, (0, 3), (0, 3)) is None
    cut = compare(request, (0, 3), (0,), table_scorer(), noise)
    assert cut is not None and cut.position == 1 and cut.margin is None

    def first(ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
        return [0]

    def second(ids: Sequence[int], params: SamplingParams, seed: int) -> list[int]:
        return [1]

    options = {"scorer": table_scorer(), "noise_of": noise, "num_seeds": 1, "max_tokens": 1}
    assert audit_replay(first, second, [[2]], logit_error=1e-5, **options).verdict is Verdict.CONSISTENT
    assert audit_replay(first, second, [[2]], logit_error=0.0, **options).verdict is Verdict.NOT_LOSSLESS


def test_paired_mode_compares_texts_where_there_are_no_ids() -> None:
    class Texts(TableEngine):
        letters = "abcdefgh"

        def generate(self, requests: Sequence[Request]) -> list[Generation]:
            return [
                Generation((), text="".join(self.letters[token] for token in generation.token_ids))
                for generation in super().generate(requests)
            ]

    class Other(Texts):
        letters = "cbadefgh"

    options = {"num_samples": 40, "length": 3, "alpha": 1e-3}
    assert audit_paired(Texts(), Texts(), PROMPTS[:3], **options).verdict is Verdict.CONSISTENT
    assert audit_paired(Texts(), Other(), PROMPTS[:3], **options).verdict is Verdict.NOT_LOSSLESS
