"""SamplingParams and resolve: defaults, what is refused and with which words."""

import copy
import dataclasses
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftproof.errors import ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import bad_word_token_ids, resolve

VLLM_DEFAULTS = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "max_tokens": 16,
    "min_tokens": 0,
    "ignore_eos": False,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "include_stop_str_in_output": False,
}


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in VLLM_DEFAULTS} == VLLM_DEFAULTS
    assert params.stop == params.stop_token_ids == params.bad_words == ()


NUMBERS = {
    "temperature": [-0.1, math.nan, math.inf, -math.inf, "1", True, None],
    "top_p": [0, 0.0, 1.0000001, -1, math.nan, False],
    "min_p": [-0.01, 1.01, math.nan, True],
    "top_k": [-2, 1.0, "5", True, None],
    "presence_penalty": [-2.1, 2.1, math.nan, "0"],
    "frequency_penalty": [-2.1, 2.1, math.inf],
    "repetition_penalty": [0, -1, math.inf, math.nan, True],
    "seed": [-1, 2**64, 1.0, True, "7"],
    "max_tokens": [0, -1, 1.5, True],
    "min_tokens": [-1, 17, 0.5, None, True],
    "logprobs": [-2, 1.5, True],
    "prompt_logprobs": [-2, 1.5, True],
    "n": [0, 1.0, True],
    "ignore_eos": [1, None, "yes"],
    "detokenize": [0],
    "skip_special_tokens": ["no"],
    "include_stop_str_in_output": [None],
    "stop": [[""], "", [1], b"x", 5],
    "stop_token_ids": [[-1], [1.5], "12", 3, [True]],
    "allowed_token_ids": [[], [-1], ["a"], 4],
    "bad_words": [[""], "word", [3]],
    "logit_bias": [
        {-1: 1.0},
        {1: 101},
        {1: math.nan},
        {1: math.inf},
        {1: "x"},
        {"a": 1.0},
        {1: True},
        [1],
        {1: 1, "1": 2},
    ],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NUMBERS.items() for value in values])
def test_bad_values_name_field_value_and_range(name: str, value: object) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name and caught.value.allowed
    assert str(caught.value).startswith(f"{name}=") and "must be" in str(caught.value)


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-40, 5e-324, 0.7, 1.0, 2.5, 1e30, 1e308])
def test_every_finite_temperature_is_kept_as_given(temperature: float) -> None:
    assert SamplingParams(temperature=temperature).temperature == temperature


def test_values_at_the_ends_are_accepted() -> None:
    params = SamplingParams(
        top_p=1,
        min_p=1,
        top_k=-1,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1e-300,
        seed=2**64 - 1,
        max_tokens=None,
        min_tokens=10**9,
        logprobs=-1,
        stop="END",
        stop_token_ids=[3, 3, 1],
        bad_words=None,
        logit_bias={"5": -100, np.int64(6): 100.0, 7: -math.inf},
    )
    assert params.stop == ("END",) and params.stop_token_ids == (3, 1) and params.bad_words == ()
    assert params.logit_bias == {5: -100.0, 6: 100.0, 7: -math.inf}
    assert type(params.top_p) is float and type(SamplingParams(top_k=np.int64(3)).top_k) is int


def test_frozen_hashable_comparable_and_portable() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={1: 2.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[call-arg]
    for twin in (copy.deepcopy(params), pickle.loads(pickle.dumps(params)), dataclasses.replace(params)):
        assert twin == params and hash(twin) == hash(params)
    assert dataclasses.replace(params, seed=3).seed == 3


@pytest.mark.parametrize("make", [lambda given: SamplingParams(**given), SamplingParams.from_dict])
def test_unknown_and_unsupported_fields_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError, match="temprature=0.5: .*did you mean 'temperature'"):
        make({"temprature": 0.5})
    with pytest.raises(ParameterError, match="zzz=1: .*the fields are n, "):
        make({"zzz": 1})
    for name, value in {
        "extra_args": {"a": 1},
        "best_of": 2,
        "use_beam_search": True,
        "spaces_between_special_tokens": False,
        "thinking_token_budget": 5,
    }.items():
        with pytest.raises(ParameterError, match=f"{name}=.*left unset"):
            make({name: value})


def test_from_dict_takes_none_as_unset_and_neutral_values_of_unsupported_fields() -> None:
    given = {
        "temperature": None,
        "top_p": 0.5,
        "seed": None,
        "logprob_token_ids": None,
        "best_of": 1,
        "stop": ["a", "b"],
    }
    assert SamplingParams.from_dict(given) == SamplingParams(top_p=0.5, stop=["a", "b"])
    assert SamplingParams.from_dict({"max_tokens": None}).max_tokens is None
    assert SamplingParams.from_dict({}) == SamplingParams()


def test_stop_strings_need_text() -> None:
    with pytest.raises(ParameterError, match="stop"):
        SamplingParams(stop=["a"], detokenize=False)


def test_params_load_no_torch() -> None:
    code = "import sys, draftproof.params; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logit_bias": {8: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [0, 8]}, "allowed_token_ids"),
        ({"stop_token_ids": [9]}, "stop_token_ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(fields: dict, name: str) -> None:
    with pytest.raises(ParameterError, match=rf"{name}=\[[89]\]: must be token ids in \[0, 8\)"):
        resolve(SamplingParams(**fields), None, 8)


def test_resolve_refuses_bad_words_and_eos_that_do_not_fit() -> None:
    for ids, message in (([[8]], "bad_words"), ([[1, -1]], "bad_words"), ([[]], "bad_word_ids")):
        with pytest.raises(ParameterError, match=message):
            resolve(SamplingParams(), None, 8, bad_word_ids=ids)
    with pytest.raises(ParameterError, match="eos_token_ids"):
        resolve(SamplingParams(), None, 8, [8])
    with pytest.raises(ParameterError, match="without a tokenizer"):
        resolve(SamplingParams(bad_words=["x"]), None, 8)
    for size in (0, -1, True, 2.0):
        with pytest.raises(ParameterError, match="vocab_size"):
            resolve(SamplingParams(), None, size)  # type: ignore[arg-type]


def word_tokenizer() -> Tokenizer:
    """Byte-level pieces: `cat` and ` cat` are one token each, `ab` is two and ` ab` three."""
    vocab = {"c": 0, "a": 1, "t": 2, "Ġ": 3, "ca": 4, "cat": 5, "Ġcat": 6, "b": 7}
    merges = [("c", "a"), ("ca", "t"), ("Ġ", "cat")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_bad_words_are_banned_at_the_start_and_after_a_space() -> None:
    tokenizer = word_tokenizer()
    assert bad_word_token_ids(tokenizer, ["cat"]) == [[5], [6]]
    assert bad_word_token_ids(tokenizer, [" cat"]) == [[5], [6]]
    assert bad_word_token_ids(tokenizer, ["ab", "cat"]) == [[1, 7], [5], [6]], "' ab' ends with the tokens of 'ab'"
    row = resolve(SamplingParams(bad_words=["cat", "ab"]), tokenizer, 8)
    assert row.banned_ids.tolist() == [5, 6] and row.banned_sequences == ((1, 7),)
    with pytest.raises(ParameterError, match="at least one token"):
        bad_word_token_ids(tokenizer, [" "])
