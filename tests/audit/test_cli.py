"""Every verb of `draftproof audit` from its flags to its exit code, on a tiny random model.

Error budget: audits at 1e-4 with fixed seeds, one run each.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftproof import SamplingParams
from draftproof.audit.mutants.run import trials
from draftproof.audit.verdict import Audit, Finding, Verdict
from draftproof.cli import main
from tests.cli.conftest import save_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """--prompts with two short ones: the built-in ones take tests longer."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("one two one two\nab\n", encoding="utf-8")
    return "--prompts", str(path)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["audit", *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def last_line(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text.splitlines()[-1])
    return document


DRAFTING = ("--method", "ngram", "--num-speculative-tokens", "3", "--max-tokens", "16")


def test_scored_says_its_plan_first_and_the_time_and_ends_with_zero(tiny: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, err = run("scored", "-m", tiny, *DRAFTING, "--budget", "500", "--html", str(page), "--json")
    document = last_line(out)
    assert code == 0 and document["verdict"] == "consistent with lossless" and len(out.splitlines()) == 1
    plan, time_needed, *_ = err.splitlines()
    assert plan.startswith("plan: alpha 0.0001") and "num_hypotheses 15" in plan and "num_tokens 500" in plan
    assert "detectable_any" in plan and "power 0.99" in plan and time_needed.startswith("about ")
    assert document["plan"]["num_hypotheses"] == 15 and document["plan"]["num_tokens"] == 500
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>") and document["versions"]


def test_detect_and_budget_turn_into_each_other(tiny: str, short: tuple[str, str]) -> None:
    _, out, _ = run("scored", "-m", tiny, *DRAFTING, *short, "--detect", "0.2", "--json")
    planned = last_line(out)["plan"]
    assert planned["detectable_any"] == pytest.approx(0.2, rel=1e-2) and planned["num_tokens"] < 1000
    code, out, err = run("scored", "-m", tiny, *DRAFTING, *short, "--budget", "1s", "--json")
    timed = last_line(out)["plan"]
    assert code == 0 and "tokens a second" in err
    assert timed["num_tokens"] == int(err.split(" tokens in ")[0].split(": ")[-1].replace(",", ""))


def test_a_wrong_engine_ends_with_one_and_a_failing_one_with_three(tiny: str) -> None:
    code, out, _ = run("scored", "-m", tiny, "--engine", "tests.audit.engines:first_letters", "--budget", "600")
    assert code == 1 and "verdict: not lossless" in out and "reproduction:" in out
    code, out, _ = run("scored", "-m", tiny, "--engine", "tests.audit.engines:fails", "--budget", "600")
    assert code == 3 and "verdict: inconclusive" in out and "out of order" in out


def test_ctrl_c_keeps_a_journal_and_the_same_call_goes_on(tiny: str, tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    asked = ("scored", "-m", tiny, "--engine", "tests.audit.engines:interrupted_once", "--budget", "500",
             "--max-tokens", "16", "--journal", str(journal), "--json")  # fmt: skip
    code, out, _ = run(*asked)
    assert code == 3 and last_line(out)["numbers"]["ended by"] == "Ctrl-C"
    recorded = len(journal.read_text(encoding="utf-8").splitlines())
    code, out, err = run(*asked)
    document = last_line(out)
    assert recorded > 1 and document["numbers"]["tokens"] >= 500 and document["exit_code"] == code
    assert "about" not in err, "the journal's pace says nothing of the engine's"


def test_greedy_replay_and_state_of_our_engine(tiny: str, short: tuple[str, str]) -> None:
    for verb, more in (
        ("greedy", ("--setting", "repetition_penalty=1.3")),
        ("replay", ("--num-seeds", "1")),
        ("state", ("--num-trials", "4")),
    ):
        drafting = (*DRAFTING, *short) if verb != "state" else ()
        code, out, _ = run(verb, "-m", tiny, *drafting, *more, "--json")
        document = last_line(out)
        assert (code, document["mode"]) == (0, verb), document["summary"]


def test_paired_states_its_plan_and_tells_wrong_from_right(tiny: str, short: tuple[str, str]) -> None:
    asked = ("paired", "-m", tiny, *short, "--num-samples", "24", "--length", "2", "--alpha", "1e-3", "--json")
    code, out, err = run(*asked, *DRAFTING[:4])
    assert code == 0 and err.startswith("plan: alpha 0.001") and "detectable_first_token" in err
    assert last_line(out)["plan"]["num_hypotheses"] == 5
    code, out, _ = run(*asked, "--against", "tests.audit.engines:first_letters")
    assert code == 1 and last_line(out)["findings"]


def test_rule_by_samples_states_its_plan() -> None:
    code, out, err = run(
        "rule", "--rule", "tests.audit.rules:draws_from_target", "--coins", "generator", "--budget", "1500", "--json"
    )
    assert code == 0 and err.startswith("plan: alpha 0.0001") and "detectable_any" in err
    assert last_line(out)["plan"]["num_tokens"] == 1500


def test_self_ends_with_one_where_a_mutant_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Audit(
        "self", "the audit itself", Verdict.NOT_LOSSLESS, "", (Finding("a mutant survives", "", 0.0, 1.0, ""),)
    )
    asked: list[dict[str, Any]] = []

    def run_self(**options: Any) -> Audit:
        asked.append(options)
        options["progress"](1, 1)
        return kept

    monkeypatch.setattr("draftproof.audit.selftest.run_self", run_self)
    assert run("self", "--seed", "3")[0] == 1 and run("self", "--full")[0] == 1
    assert [(each["quick"], each["seed"]) for each in asked] == [(True, 3), (False, 0)]


@pytest.mark.parametrize(
    ("mutant", "words"),
    [
        ("penalty state frozen over the block", "penalty state frozen over the block"),
        ("seed token missing from the penalties' history", "the newest token before the block is missing"),
        ("min_tokens counted once for a block", "min_tokens counted once for a block"),
        ("temperature not applied to verified rows", "temperature not applied to some rows"),
        ("logit_bias ignored on draft rows", "logit_bias not applied to some rows"),
    ],
)
def test_the_first_cause_is_the_mutants_own(mutant: str, words: str) -> None:
    (trial,) = [trial for trial in trials(3500) if trial.name == mutant]
    assert trial.run(True, 1).causes[0].name.startswith(words)
    assert trial.run(False, 1).causes == ()


def test_a_reproduction_runs_and_gives_what_came_back(tiny: str) -> None:
    from tests.audit.engines import first_letters

    _, out, _ = run("scored", "-m", tiny, "--engine", "tests.audit.engines:first_letters", "--budget", "800", "--json")
    found: dict[str, Any] = {"SamplingParams": SamplingParams}
    exec(last_line(out)["reproduction"], found)
    assert list(first_letters(found["prompt_ids"], found["params"], found["seed"])) == found["came_back"]


def test_the_guides_sample_sizes_are_the_plans() -> None:
    """Total variation, tokens along an order, tokens into a set of variance 1/4: two digits of the formulas."""
    from draftproof.audit.battery import Layout
    from draftproof.audit.plan import ALPHA, POWER, detectable_aligned, detectable_any, pooled_level

    text = (Path(__file__).parents[2] / "docs/reading-an-audit.md").read_text(encoding="utf-8")
    level = pooled_level(Layout(knows_draft=True), ALPHA)
    rows = re.findall(r"^\| (0\.[0-9]+) \| ([0-9.,]+(?: million)?) \| ([0-9.,]+(?: million)?) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for total_variation, any_order, one_set in rows:
        for printed, sees in ((any_order, detectable_any), (one_set, detectable_aligned)):
            tokens = float(printed.split()[0].replace(",", "")) * (1e6 if "million" in printed else 1)
            assert sees(int(tokens), level, POWER) == pytest.approx(float(total_variation), rel=0.02)
