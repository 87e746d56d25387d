"""Diagnosis, the HTML page, the JSON document and the command line.

Error budget: audits at 1e-4 with fixed seeds, one run each.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftproof import SamplingParams
from draftproof.audit.battery import Layout, hypotheses
from draftproof.audit.diagnosis import causes_by_pattern, known_patterns
from draftproof.audit.mutants import SAMPLERS
from draftproof.audit.mutants.drafts import ArgmaxDraft
from draftproof.audit.mutants.run import dosed, scores_of
from draftproof.audit.mutants.sampler import ExactSampler, instance_tables
from draftproof.audit.mutants.verifiers import GreedyBonus, ResidualIsTarget
from draftproof.audit.page import page, write_page
from draftproof.audit.scored import audit_scored
from draftproof.audit.verdict import Audit, Finding, Verdict
from draftproof.cli import main
from tests.audit.toys import PROMPTS, SamplerEngine, TableEngine, table_scorer

LAYOUT = Layout(knows_draft=True, by_offset=True)


@pytest.mark.parametrize("mutant", [ArgmaxDraft, GreedyBonus, ResidualIsTarget], ids=lambda mutant: mutant.__name__)
def test_a_mutant_on_other_tables_is_recognised(mutant: type[ExactSampler]) -> None:
    """Patterns were made on "random" tables; here are other ones, and half of the requests are exact."""
    mutant = type(mutant.__name__, (mutant,), {"instance": "far"})
    scores = scores_of(dosed(mutant, 0.5, 1000, 9), *instance_tables("far"), seed=9)
    named = [cause.name for cause in causes_by_pattern(hypotheses(scores, LAYOUT))]
    assert any(mutant.name in name for name in named), named


def test_exact_output_has_no_cause() -> None:
    scores = scores_of(dosed(ExactSampler, 1.0, 500, 9), *instance_tables("random"), seed=9)
    assert not any(cause.likeness > 0.95 for cause in causes_by_pattern(hypotheses(scores, LAYOUT)))


def test_every_sampler_has_its_pattern() -> None:
    assert {known["name"] for known in known_patterns()} == {mutant.name for mutant in SAMPLERS}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "rect", "line", "polyline", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


@pytest.fixture(scope="module")
def bad_audit() -> Audit:
    engine = SamplerEngine(ResidualIsTarget(*instance_tables("random")))
    return audit_scored(engine, table_scorer(knows_draft=True), PROMPTS, num_tokens=12_000)


def test_the_page_is_whole_and_needs_no_network(bad_audit: Audit, tmp_path: Path) -> None:
    text = page(bad_audit)
    tags = _Tags()
    tags.feed(text)
    assert tags.open == [] and tags.seen.count("svg") == 4 and "script" not in tags.seen
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)
    assert bad_audit.verdict.value in text and bad_audit._repr_html_() == text
    write_page(bad_audit, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text


def test_text_from_engines_is_escaped() -> None:
    audit = Audit(
        "scored", "<script>alert(1)</script>", Verdict.NOT_LOSSLESS, "<b>", (Finding("<i>", "&", 0.0, 1.0, ""),)
    )
    assert "<script>" not in page(audit) and "&lt;script&gt;" in page(audit)


def test_the_document_is_json(bad_audit: Audit) -> None:
    document = json.loads(json.dumps(bad_audit.to_dict()))
    assert document["verdict"] == "not lossless" and document["exit_code"] == 1
    assert document["reproduction"].startswith("#")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["audit", *arguments])
    return result.exit_code, result.stdout


def test_exit_codes_and_the_last_line() -> None:
    code, text = run("rule", "--verifier", "match", "--json")
    document = json.loads(text.splitlines()[-1])
    assert code == 0 and document["verdict"] == "consistent with lossless" and len(text.splitlines()) == 1
    code, text = run("rule", "--rule", "tests.audit.rules:residual_is_target", "--json")
    assert code == 1 and json.loads(text)["findings"]
    code, text = run("rule", "--rule", "tests.audit.rules:opens_coins")
    assert code in (1, 3) and "verdict:" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("rule",),
        ("rule", "--verifier", "no-such"),
        ("rule", "--rule", "tests.audit.rules:missing"),
        ("rule", "--rule", "tests.audit.rules:opens_coins", "--budget", "10m", "--coins", "generator"),
        ("scored", "--budget", "many"),
        ("scored", "--budget", "100", "--detect", "0.1"),
        ("scored", "--setting", "warm"),
        ("scored", "--setting", "no_such_field=1"),
    ],
    ids=" ".join,
)
def test_flags_that_cannot_be_honoured_are_usage_errors(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_settings_are_read() -> None:
    from draftproof.cli.audit_targets import read_budget, read_settings

    found = read_settings(("temperature=0.7 top_p=0.9", "logit_bias={1:-5;2:3}, min_tokens=2", "stop_token_ids=1|2"))
    assert found["temperature=0.7 top_p=0.9"] == SamplingParams(temperature=0.7, top_p=0.9)
    assert list(found.values())[1] == SamplingParams(logit_bias={1: -5.0, 2: 3.0}, min_tokens=2)
    assert list(found.values())[2].stop_token_ids == (1, 2)
    assert read_budget("250,000") == (250_000, None) and read_budget("1.5m") == (None, 90.0)


def test_replay_and_state_of_our_own_engine_run_over_a_table() -> None:
    """The slots of a target, and the Gumbel field that the margin rule reads, are those of the engine."""
    from draftproof import LLM
    from draftproof.audit.ours import OurEngine
    from draftproof.audit.replay import audit_replay
    from draftproof.audit.state import audit_state
    from draftproof.cli.audit import _gumbel
    from draftproof.cli.audit_state import Slots
    from draftproof.targets.toy import TableTarget
    from draftproof.verify.tables import LawTable

    table = LawTable(5, lambda context: [1 + (context[-1] * 3 + token) % 4 for token in range(5)])

    def llm(speculative: dict[str, object] | None) -> LLM:
        return LLM.from_target(TableTarget(table, num_slots=2), None, speculative_config=speculative)

    drafting = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    prompts, options = [[1, 2, 1, 2, 1], [3]], {"max_tokens": 24, "num_seeds": 3}
    speculating, plain = OurEngine(llm(drafting)), OurEngine(llm(None))
    assert audit_replay(speculating, plain, prompts, noise_of=_gumbel, **options).verdict is Verdict.CONSISTENT
    assert speculating.keyed and not OurEngine(llm({**drafting, "verifier": "rejection"})).keyed
    audit = audit_state(Slots(TableTarget(table, num_slots=2)).take, num_trials=12, tolerance=1e-6)
    assert audit.verdict is Verdict.CONSISTENT


def test_ours_reports_where_passes_start() -> None:
    from draftproof.audit.ours import _generation

    class Completion:
        token_ids = (1, 2, 3, 4)
        outcomes = ("accepted", "bonus", "recovered", "accepted")
        logprobs = None
        text = ""

    assert _generation(Completion()).pass_starts == (0, 2, 3)


def test_transformers_generate_is_audited_with_its_own_chain() -> None:
    """A tiny random Llama under prompt lookup, at two samplers, 600 tokens; the seed decides the output."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from draftproof import SamplerChain
    from draftproof.audit import Scorer, TorchModel, TransformersEngine
    from draftproof.audit.engine import Request

    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, initializer_range=0.3, bos_token_id=None, eos_token_id=None)
        ).float()  # fmt: skip
    engine = TransformersEngine(model, prompt_lookup=3)
    settings = {
        "plain": SamplingParams(ignore_eos=True),
        "filtered": SamplingParams(temperature=0.7, top_k=6, ignore_eos=True),
        "biased": SamplingParams(logit_bias={1: 1.0}),
    }
    scorer = Scorer(TorchModel(model), chain=SamplerChain(preset="hf"))
    audit = audit_scored(
        engine, scorer, [[1, 2, 1, 2]], settings=settings, num_tokens=600, max_tokens=16, logit_error=1e-4
    )
    assert audit.verdict is Verdict.CONSISTENT and [name for name, _ in audit.refused] == ["biased"]
    asked = [Request((1, 2, 1, 2), SamplingParams(ignore_eos=True), 7)]
    assert engine.generate(asked) == engine.generate(asked)


def test_a_table_engine_needs_no_draft() -> None:
    audit = audit_scored(TableEngine(), table_scorer(), PROMPTS, num_tokens=600)
    assert any("without the drafter's weights" in limit for limit in audit.limits)
