"""Flags are the dataclasses' fields, in their words and with their checks; every flag has an environment variable."""

import json
from dataclasses import fields
from typing import Any

import click
import pytest

from draftproof.cli import main
from draftproof.cli.engine_flags import engine_config, speculative_config
from draftproof.cli.generate import generate
from draftproof.cli.sampling_flags import DEFAULT_MAX_TOKENS, HELP, NO_FLAG, flag_of, sampling_params
from draftproof.config import METHODS, EngineConfig, SpeculativeConfig
from draftproof.errors import ParameterError
from draftproof.params import SamplingParams

OPTIONS = {option.name: option for option in generate.params if isinstance(option, click.Option)}


def parse(*arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The values that `generate` gets for `arguments`; nothing is run."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        return dict(generate.make_context("generate", list(arguments)).params)


def test_every_field_of_the_sampling_parameters_has_a_flag_and_a_help_text() -> None:
    names = [field.name for field in fields(SamplingParams) if field.name not in NO_FLAG]
    assert [name for name in names if flag_of(name) not in OPTIONS[name].opts] == []
    assert sorted(HELP) == sorted(names)


# One value that is not the default for each field; a new field without an entry fails.
VALUES: dict[str, tuple[list[str], Any]] = {
    "n": (["1"], 1),
    "presence_penalty": (["-0.5"], -0.5),
    "frequency_penalty": (["0.5"], 0.5),
    "repetition_penalty": (["1.3"], 1.3),
    "temperature": (["0.7"], 0.7),
    "top_p": (["0.9"], 0.9),
    "top_k": (["20"], 20),
    "min_p": (["0.05"], 0.05),
    "seed": (["18446744073709551615"], 2**64 - 1),
    "stop": (["a, b", "c"], ("a, b", "c")),
    "stop_token_ids": (["1,2", "3"], (1, 2, 3)),
    "max_tokens": (["none"], None),
    "min_tokens": (["4"], 4),
    "logprobs": (["3"], 3),
    "logit_bias": (["5:-1.5,7:2", "9:-inf"], {5: -1.5, 7: 2.0, 9: float("-inf")}),
    "allowed_token_ids": (["4,5"], (4, 5)),
    "bad_words": (["x y"], ("x y",)),
    "prompt_logprobs": (["2"], 2),
    "typical_p": (["0.8"], 0.8),
    "top_n_sigma": (["1.5"], 1.5),
    "epsilon_cutoff": (["0.001"], 0.001),
    "eta_cutoff": (["0.002"], 0.002),
    "xtc_probability": (["0.5"], 0.5),
    "xtc_threshold": (["0.2"], 0.2),
    "dry_multiplier": (["0.8"], 0.8),
    "dry_base": (["2"], 2.0),
    "dry_allowed_length": (["3"], 3),
    "dry_penalty_last_n": (["64"], 64),
    "dry_sequence_breakers": (["x", ";"], ("x", ";")),
    "mirostat": (["2"], 2),
    "mirostat_tau": (["3"], 3.0),
    "mirostat_eta": (["0.2"], 0.2),
    "dynatemp_range": (["0.3"], 0.3),
    "dynatemp_exponent": (["2"], 2.0),
    "no_repeat_ngram_size": (["3"], 3),
}
SWITCHES = {
    "ignore_eos": ("--ignore-eos", True),
    "detokenize": ("--no-detokenize", False),
    "skip_special_tokens": ("--no-skip-special-tokens", False),
    "include_stop_str_in_output": ("--include-stop-str-in-output", True),
}


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams) if field.name not in NO_FLAG])
def test_the_flag_of_a_field_sets_that_field_and_no_other(name: str) -> None:
    if name in SWITCHES:
        flag, expected = SWITCHES[name]
        arguments = [flag]
    else:
        texts, expected = VALUES[name]
        arguments = [part for text in texts for part in (flag_of(name), text)]
    params = sampling_params(parse(*arguments))
    assert getattr(params, name) == expected
    plain = sampling_params(parse())
    others = [field.name for field in fields(SamplingParams) if field.name != name]
    assert [getattr(params, other) for other in others] == [getattr(plain, other) for other in others]


def test_without_flags_the_parameters_are_the_library_s_but_for_max_tokens() -> None:
    assert sampling_params(parse()) == SamplingParams(max_tokens=DEFAULT_MAX_TOKENS)


@pytest.mark.parametrize("flag", ["--max-tokens", "--max-new-tokens", "-n"])
def test_aliases_of_max_tokens(flag: str) -> None:
    assert sampling_params(parse(flag, "7")).max_tokens == 7


def test_alias_of_temperature() -> None:
    assert sampling_params(parse("--temp", "0")).is_greedy


@pytest.mark.parametrize(
    ("arguments", "field", "allowed"),
    [
        (["--top-p", "1.5"], "top_p", "(0, 1]"),
        (["--temperature", "warm"], "temperature", "[0, inf)"),
        (["--top-k", "1.5"], "top_k", "an integer of 1 or more"),
        (["--temperature", "none"], "temperature", "[0, inf)"),
        (["--seed", "-1"], "seed", "[0, 2**64)"),
        (["--stop-token-ids", "1,x"], "stop_token_ids", "an integer of 0 or more"),
        (["--logit-bias", "5"], "logit_bias", "ID:VALUE"),
        (["--logit-bias", "5:101"], "logit_bias", "[-100, 100]"),
        (["--logit-bias", "5:1", "--logit-bias", "5:2"], "logit_bias", "given once"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_range(arguments: list[str], field: str, allowed: str) -> None:
    with pytest.raises(ParameterError) as caught:
        sampling_params(parse(*arguments))
    assert caught.value.field == field
    assert allowed in str(caught.value)


def test_every_field_of_the_configs_has_a_flag() -> None:
    # A batch of one prompt has one sequence; the draft model's flag is --draft-model.
    engine = {field.name for field in fields(EngineConfig)}
    speculative = {field.name for field in fields(SpeculativeConfig)} - {"model"} | {"draft_model"}
    assert engine | speculative <= set(OPTIONS)


def test_without_flags_the_configs_are_the_library_s() -> None:
    given = parse()
    assert engine_config(given) == EngineConfig()
    assert speculative_config(given) == SpeculativeConfig()


ENGINE = ["-m", "x", "--dtype", "bf16", "--device", "cuda", "--no-invariant", "--max-model-len", "99", "--chain", "mlx"]


def test_the_flags_of_the_engine_set_its_fields() -> None:
    found = engine_config(parse(*ENGINE, "--chain-dtype", "float64", "--invariant-width", "8"))
    assert found == EngineConfig(
        model="x",
        dtype="bfloat16",
        device="cuda",
        invariant=False,
        invariant_width=8,
        max_model_len=99,
        chain="mlx",
        chain_dtype="float64",
    )


@pytest.mark.parametrize("flag", ["-k", "--num-draft-tokens", "--num-speculative-tokens", "--spec-draft-n-max"])
def test_the_flags_of_speculation_set_its_fields(flag: str) -> None:
    arguments = [flag, "3", "--draft-length", "fixed", "--verifier", "block", "--prompt-lookup-min", "1"]
    more = ["--prompt-lookup-max", "7", "--no-share-target-noise"]
    assert speculative_config(parse("--method", "suffix", *arguments, *more)) == SpeculativeConfig(
        method="suffix",
        num_speculative_tokens=3,
        draft_length="fixed",
        verifier="block",
        prompt_lookup_min=1,
        prompt_lookup_max=7,
        share_target_noise=False,
    )


@pytest.mark.parametrize(
    ("spelling", "method"), [("ngram", "ngram"), ("NGRAM", "ngram"), ("ngram-simple", "ngram"), ("suffix", "suffix")]
)
@pytest.mark.parametrize("flag", ["--method", "--spec-type", "--speculative-algorithm"])
def test_other_engines_spellings_of_a_method(flag: str, spelling: str, method: str) -> None:
    config = speculative_config(parse(flag, spelling))
    assert config is not None and config.method == method


@pytest.mark.parametrize("flag", ["--draft-model", "-md", "--model-draft", "--speculative-draft-model-path"])
@pytest.mark.parametrize("method", [[], ["--method", "draft-simple"], ["--method", "STANDALONE"]])
def test_a_draft_model_and_its_spellings(flag: str, method: list[str]) -> None:
    config = speculative_config(parse(flag, "small", *method))
    assert config == SpeculativeConfig(method="draft_model", model="small")


def test_an_unknown_method_is_refused_with_the_list() -> None:
    with pytest.raises(ParameterError, match=", ".join(METHODS)):
        speculative_config(parse("--method", "oracle"))


def test_a_learned_drafter_and_its_spellings() -> None:
    for spelling, method in (("EAGLE3", "eagle3"), ("draft-dspark", "dspark"), ("dflash", "dflash")):
        config = speculative_config(parse("--method", spelling, "-md", "folder"))
        assert config == SpeculativeConfig(method=method, model="folder")
    assert speculative_config(parse("--method", "EAGLE3")) == SpeculativeConfig(method="eagle3")


@pytest.mark.parametrize("arguments", [["--method", "ngram", "-md", "x"], ["--method", "draft_model"]])
def test_method_and_draft_model_must_agree(arguments: list[str]) -> None:
    with pytest.raises(ParameterError) as caught:
        speculative_config(parse(*arguments))
    assert caught.value.field == "draft_model"


def test_no_speculation_says_which_flags_are_unused(capsys: pytest.CaptureFixture[str]) -> None:
    assert speculative_config(parse("--no-speculation", "--method", "ngram", "-k", "3")) is None
    message = capsys.readouterr().err
    assert "--method" in message and "--num-speculative-tokens" in message and "--verifier" not in message


def test_unused_flags_are_checked_all_the_same() -> None:
    with pytest.raises(ParameterError, match="num_speculative_tokens=0"):
        speculative_config(parse("--no-speculation", "-k", "0"))


def test_every_flag_has_an_environment_variable() -> None:
    environment = {
        "DRAFTPROOF_TOP_P": "0.5",
        "DRAFTPROOF_MODEL": "x",
        "DRAFTPROOF_STOP": "a b\nc",
        "DRAFTPROOF_STOP_TOKEN_IDS": "1,2 3",
        "DRAFTPROOF_IGNORE_EOS": "1",
        "DRAFTPROOF_INVARIANT": "0",
        "DRAFTPROOF_JSON": "1",
        "DRAFTPROOF_NUM_SPECULATIVE_TOKENS": "4",
    }
    given = parse(environment=environment)
    params = sampling_params(given)
    assert (params.top_p, params.stop, params.stop_token_ids, params.ignore_eos) == (0.5, ("a b", "c"), (1, 2, 3), True)
    assert engine_config(given) == EngineConfig(model="x", invariant=False)
    assert given["json"] is True and given["num_speculative_tokens"] == 4


def test_every_verb_s_environment_variables_have_one_prefix() -> None:
    assert {verb.context_settings["auto_envvar_prefix"] for verb in main.commands.values()} == {"DRAFTPROOF"}


def test_the_settings_of_a_document_can_be_written() -> None:
    from draftproof.cli.output import _plain

    assert json.loads(json.dumps(_plain({"biases": {5: float("-inf")}}), allow_nan=False)) == {"biases": {"5": "-inf"}}
