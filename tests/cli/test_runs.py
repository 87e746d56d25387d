"""Verbs as a user runs them, on a tiny random model."""

import json
from pathlib import Path

import pytest

from draftproof import LLM, SamplingParams
from draftproof.cli.sampling_flags import DEFAULT_MAX_TOKENS
from tests.cli.conftest import MAX_MODEL_LEN, Run

SHORT = ("--max-tokens", "12", "--seed", "3", "--ignore-eos", "--dtype", "float32")


@pytest.fixture(scope="module")
def llm(tiny: str) -> LLM:
    return LLM(tiny, dtype="float32")


def expected_text(llm: LLM, prompt: str, *, chat: bool = True) -> str:
    params = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    prompt_ids = llm.encode_chat([{"role": "user", "content": prompt}]) if chat else llm.tokenizer(prompt)["input_ids"]
    return llm.generate([prompt_ids], params)[0].text


def document(stdout: str) -> dict[str, object]:
    """The document on stdout, which must be one line and nothing else."""
    assert stdout.endswith("\n") and stdout.count("\n") == 1
    found = json.loads(stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("verb", [(), ("generate",)])
def test_a_prompt_without_a_verb_is_generated(run: Run, tiny: str, llm: LLM, verb: tuple[str, ...]) -> None:
    done = run(*verb, "hello there", "-m", tiny, *SHORT)
    assert (done.returncode, done.stdout) == (0, expected_text(llm, "hello there") + "\n")
    assert "12 tokens (length)" in done.stderr and "seed 3" in done.stderr


def test_a_flag_first_is_generate_s(run: Run, tiny: str, llm: LLM) -> None:
    done = run("-m", tiny, *SHORT, "--no-stats", "hello there")
    assert (done.stdout, done.stderr) == (expected_text(llm, "hello there") + "\n", "")


@pytest.mark.parametrize("arguments", [(), ("-",), ("generate",)])
def test_a_prompt_on_stdin(run: Run, tiny: str, llm: LLM, arguments: tuple[str, ...]) -> None:
    variables = {
        "DRAFTPROOF_MODEL": tiny,
        "DRAFTPROOF_MAX_TOKENS": "12",
        "DRAFTPROOF_SEED": "3",
        "DRAFTPROOF_IGNORE_EOS": "1",
        "DRAFTPROOF_DTYPE": "float32",
    }
    done = run(*arguments, stdin="hello there\n", **variables)
    assert (done.returncode, done.stdout) == (0, expected_text(llm, "hello there") + "\n"), done.stderr


def test_raw_leaves_the_template_out(run: Run, tiny: str, llm: LLM) -> None:
    done = run("hello", "--raw", "-m", tiny, *SHORT)
    assert done.stdout == expected_text(llm, "hello", chat=False) + "\n"


def test_json_is_one_document_and_speculation_changes_no_token(run: Run, tiny: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    arguments = ("abcabcabcabc", "-m", tiny, "--json", "--ignore-eos", "--max-tokens", "40", "--dtype", "float32")
    sampling = ("--seed", "11", "--top-k", "2", "--temperature", "0.5", "--logit-bias", "9:-inf", "--logprobs", "1")
    drafting = document(
        run(*arguments, *sampling, "--draft-length", "fixed", "--prompt-lookup-min", "1", "--trace", str(trace)).stdout
    )
    plain = document(run(*arguments, *sampling, "--no-speculation").stdout)
    assert drafting["token_ids"] == plain["token_ids"] and drafting["text"] == plain["text"]
    assert drafting["seed"] == 11 and drafting["finish_reason"] == "length"
    record = drafting["metrics"]["speculative_decoding"]  # type: ignore[index]
    assert record["num_draft_tokens"] > 0
    assert sum(drafting["from_draft"]) == record["num_accepted_draft_tokens"]  # type: ignore[arg-type]
    assert plain["metrics"]["speculative_decoding"] is None  # type: ignore[index]
    assert len(drafting["logprobs"]) == 40  # type: ignore[arg-type]
    assert len(trace.read_text(encoding="utf-8").splitlines()) == 40
    settings = drafting["settings"]
    assert settings["model"] == tiny and settings["verifier"] == "keyed" and settings["dtype"] == "float32"  # type: ignore[index]
    assert settings["invariant"] is False and "in this order" in settings["chain_printed"]  # type: ignore[index]
    assert settings["sampling_params"]["logit_bias"] == {"9": "-inf"}  # type: ignore[index]
    assert drafting["versions"]["torch"]  # type: ignore[index]


def test_drafts_are_shown_in_brackets_where_there_is_no_colour(run: Run, tiny: str) -> None:
    # With one allowed token the text repeats, and every draft is accepted.
    arguments = ("ab", "-m", tiny, *SHORT, "--allowed-token-ids", "70", "--draft-length", "fixed")
    shown, plain = run(*arguments, "--show-drafts"), run(*arguments)
    assert "[accepted drafts]" in shown.stderr and "\x1b" not in shown.stdout
    assert "[" in shown.stdout
    assert shown.stdout.replace("[", "").replace("]", "") == plain.stdout
    coloured = run(*arguments, "--show-drafts", FORCE_COLOR="1")
    assert coloured.stdout == shown.stdout.replace("[", "\x1b[32m").replace("]", "\x1b[0m")


def test_chat_keeps_the_conversation(run: Run, tiny: str) -> None:
    done = run(
        "chat", "-m", tiny, *SHORT, "--json", "--system", "be brief", stdin="one\ntwo\n/reset\nthree\n/exit\nno\n"
    )
    assert done.returncode == 0, done.stderr
    found = document(done.stdout)
    first, second, third = found["turns"]  # type: ignore[misc]
    assert first["seed"] == second["seed"] == 3 and third["seed"] != 3  # type: ignore[has-type]
    earlier = [*first["prompt_token_ids"], *first["token_ids"]]  # type: ignore[has-type]
    assert len(second["prompt_token_ids"]) >= len(earlier)  # type: ignore[has-type]
    assert [message["role"] for message in found["messages"]] == ["system", "user", "assistant"]  # type: ignore[attr-defined]
    assert found["messages"][1]["content"] == "three"  # type: ignore[index]


def test_chat_ends_with_the_input(run: Run, tiny: str, llm: LLM) -> None:
    done = run("chat", "-m", tiny, *SHORT, stdin="hello there")
    assert (done.returncode, done.stdout) == (0, expected_text(llm, "hello there") + "\n")


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("x", "-m", "/no/such/folder"), 1, ["/no/such/folder"]),
        (("x", "--top-p", "2"), 2, ["top_p=2.0", "(0, 1]"]),
        (("x", "--method", "oracle"), 2, ["ngram, suffix, forced, draft_model"]),
        (("x", "--chain", "x"), 2, ["chain='x'", "vllm, hf, llama.cpp, mlx"]),
        (("x", "--verifier", "greedy"), 2, ["verifier='greedy'", "keyed"]),
        (("x", "--temprature", "1"), 2, ["--temprature", "draftproof generate --help"]),
        (("x", "y"), 2, ["unexpected extra argument"]),
        (("x", "--logprobs", "2"), 2, ["logprobs=2", "--json"]),
        ((), 2, ["prompt=''", "at least one character"]),
        (("prove", "--quick", "--mutants"), 2, ["quick=True"]),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, parts: list[str]
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert [part for part in parts if part not in done.stderr] == []


def test_an_error_with_json_is_a_document_too(run: Run) -> None:
    for arguments in (("x", "--json", "--top-p", "2"), ("x", "--json", "--nonsense")):
        done = run(*arguments)
        found = document(done.stdout)
        assert done.returncode == 2
        assert done.stderr == f"error: {found['error']}\n"


def test_debug_shows_the_traceback(run: Run) -> None:
    done = run("x", "--top-p", "2", "--debug")
    assert done.returncode == 2 and "Traceback" in done.stderr and "error: top_p" in done.stderr


def test_a_failed_request_is_a_document_with_its_error(run: Run, tiny: str) -> None:
    done = run("x" * (MAX_MODEL_LEN + 1), "-m", tiny, "--json")
    found = document(done.stdout)
    assert done.returncode == 1
    assert str(MAX_MODEL_LEN) in str(found["error"]) and found["finish_reason"] == "error"


def test_what_needs_a_template_is_refused_without_one(run: Run, untemplated: str) -> None:
    system = run("x", "-m", untemplated, "--system", "be brief")
    assert system.returncode == 2 and "system='be brief'" in system.stderr
    chat = run("chat", "-m", untemplated, stdin="hello\n")
    assert chat.returncode == 2 and "chat template" in chat.stderr


def test_help_and_version(run: Run) -> None:
    shown = run("--help").stdout
    assert [verb for verb in ("generate", "chat", "demo", "prove", "ls", "env") if f"  {verb}" not in shown] == []
    assert run("--version").stdout.startswith("draftproof ")
    assert f"[default: {DEFAULT_MAX_TOKENS}]" in " ".join(run("generate", "--help").stdout.split())
