"""ls, env, prove and the demo's comparison: what they report, as text and as one document."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import draftproof.verify.mutants
import draftproof.verify.prove
from draftproof import LLM, SamplingParams
from draftproof.cli import main
from draftproof.cli.comparison import CASES, Comparison
from draftproof.cli.ls import DRAFTERS
from draftproof.config import CHAINS, METHODS
from draftproof.sampling import SamplerChain
from draftproof.verify import VERIFIERS
from draftproof.verify.mutants import MutantRecord
from draftproof.verify.prove import ProofRecord

PROOF = ProofRecord("keyed", "replay", "Dense", "chain 1", 1, 2, 30, "0", 0, True)
MUTANT = MutantRecord("a wrong rule", "a public bug", "1/3", 1 / 3, "0", True)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="draftproof")


def document(result: Result) -> dict[str, Any]:
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_ls_has_every_verifier_drafter_and_chain() -> None:
    found = document(invoke("ls", "--json"))
    assert [verifier["name"] for verifier in found["verifiers"]] == list(VERIFIERS)
    by_name = {verifier["name"]: verifier for verifier in found["verifiers"]}
    assert by_name["block"] == {
        "name": "block",
        "guarantee": "exact-law",
        "needs_draft_law": True,
        "supports_trees": False,
    }
    assert [drafter["name"] for drafter in found["drafters"]] == list(METHODS) == list(DRAFTERS)
    assert {chain["name"]: chain["description"] for chain in found["chains"]} == {
        name: str(SamplerChain(preset=name)) for name in CHAINS
    }


def test_ls_as_text_prints_the_tables_and_the_chains() -> None:
    shown = invoke("ls").stdout
    assert [name for name in (*VERIFIERS, *METHODS) if f" {name} " not in shown] == []
    assert [name for name in CHAINS if str(SamplerChain(preset=name)) not in shown] == []


def test_env() -> None:
    found = document(invoke("env", "--json"))
    assert found["versions"].keys() >= {"draftproof", "python", "torch", "transformers", "triton"}
    assert found.keys() >= {"device", "cpu_bf16_in_hardware", "num_threads", "cache_folder", "embedded_model_present"}
    assert found["versions"]["torch"] in invoke("env").stdout


def records(*items: Any) -> Any:
    def run(progress: Any = None, **_: Any) -> Iterator[Any]:
        for index, item in enumerate(items, start=1):
            yield item
            if progress is not None:
                progress(index, len(items))

    return run


@pytest.mark.parametrize(("exact", "code"), [(True, 0), (False, 1)])
def test_prove_reports_what_is_not_exact(monkeypatch: pytest.MonkeyPatch, exact: bool, code: int) -> None:
    second = replace(PROOF, verifier="block", exact=exact, max_error="0" if exact else "1/7")
    monkeypatch.setattr(draftproof.verify.prove, "prove", records(PROOF, second))
    as_text, as_json = invoke("prove"), invoke("prove", "--json")
    assert as_text.exit_code == as_json.exit_code == code
    found = document(as_json)
    assert found["all_exact"] is exact and found["combinations"][1]["verifier"] == "block"
    assert ("1/7" in as_text.stdout) is not exact
    assert as_text.stderr == ("" if exact else "error: block, Dense, chain 1 is not exact\n")


@pytest.mark.parametrize(("caught", "code"), [(True, 0), (False, 1)])
def test_prove_reports_mutants_that_survive(monkeypatch: pytest.MonkeyPatch, caught: bool, code: int) -> None:
    monkeypatch.setattr(draftproof.verify.mutants, "run_mutants", records(replace(MUTANT, caught=caught)))
    as_text, as_json = invoke("prove", "--mutants"), invoke("prove", "--mutants", "--json")
    assert as_text.exit_code == as_json.exit_code == code
    found = document(as_json)
    assert found["all_caught"] is caught and found["mutants"][0]["total_variation"] == "1/3"
    assert ("a wrong rule" in as_text.stderr) is not caught


def test_prove_quick_runs_the_proof_itself() -> None:
    found = document(invoke("prove", "--quick", "--json"))
    assert found["all_exact"] is True
    assert {record["verifier"] for record in found["combinations"]} == set(VERIFIERS)


def test_a_comparison_sees_a_single_different_token(tiny: str) -> None:
    llm = LLM(tiny, dtype="float32", speculative_config={"method": "ngram"})
    params = SamplingParams(max_tokens=8, seed=1, ignore_eos=True)
    on, other = llm.generate([[5, 6, 5, 6, 5]], params)[0], llm.generate([[5, 6, 5, 6, 5]], params)[0]
    same = Comparison(CASES[0], other, on)
    assert same.is_same and same.first_difference is None and same.row()[1] == "yes"
    ids = other.outputs[0].token_ids
    for changed, at in (((*ids[:3], ids[3] ^ 1, *ids[4:]), 3), (ids[:6], 6)):
        off = replace(other, outputs=(replace(other.outputs[0], token_ids=changed),))
        different = Comparison(CASES[0], off, on)
        assert not different.is_same and different.first_difference == at and different.row()[1] == "NO"


def test_the_demo_drafts_with_the_best_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default with trained weights, and lookups before them, which a method without weights does by itself."""
    import draftproof.cli.demo

    class Asked(Exception):
        pass

    def open_engine(config: Any, speculative: Any) -> LLM:
        if speculative is None:
            return None  # type: ignore[return-value]
        raise Asked(speculative.method, speculative.lookup_first)

    monkeypatch.setattr(draftproof.cli.demo, "open_engine", open_engine)
    for arguments, expected in (
        ((), ("dspark", 4)),
        (("--method", "eagle3", "--lookup-first", "2"), ("eagle3", 2)),
        (("--method", "suffix"), ("suffix", None)),
    ):
        found = invoke("demo", "--debug", *arguments)
        assert isinstance(found.exception, Asked) and found.exception.args == expected


def test_the_demo_compares_and_its_exit_code_tells(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    """On a tiny model in the embedded one's place, once as it is and once with an engine that drops the seed."""
    import draftproof.cli.demo

    def open_tiny(config: Any, speculative: Any) -> LLM:
        return LLM(tiny, dtype="float32", speculative_config=speculative)

    monkeypatch.setattr(draftproof.cli.demo, "open_engine", open_tiny)
    same = invoke("demo", "--method", "ngram", "--json", "--max-tokens", "12")
    assert same.exit_code == 0, same.output
    found = document(same)
    assert found["same_token_ids"] is True and len(found["cases"]) == len(CASES)
    assert found["settings"]["guarantee"] == "replay"
    text = invoke("demo", "--method", "ngram", "--max-tokens", "12")
    assert (
        text.exit_code == 0 and "the same token ids, all of them" in text.stdout and "the bonus counted" in text.stdout
    )

    def open_wrong(config: Any, speculative: Any) -> LLM:
        llm = open_tiny(config, speculative)
        if speculative is not None:
            job = llm._job
            monkeypatch.setattr(
                llm, "_job", lambda prompt, params, alone: job(prompt, replace(params, seed=2), alone=alone)
            )
        return llm

    monkeypatch.setattr(draftproof.cli.demo, "open_engine", open_wrong)
    different = invoke("demo", "--method", "ngram", "--max-tokens", "12")
    assert different.exit_code == 1
    assert (
        "the first difference is at output token" in different.stdout
        and "error: the token ids differ" in different.stderr
    )
