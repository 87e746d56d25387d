"""A model's generation_config.json: which defaults it replaces, where it is looked for, and that it is said."""

import json

import pytest

from draftproof import ModelError, ParameterError, SamplingParams
from draftproof.defaults import FILE_NAME, default_sampling_fields, note_defaults
from draftproof.requests import toy_llm
from draftproof.requests.toy import PROMPT

GIVEN = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.0,
    "repetition_penalty": 1.05,
    "max_new_tokens": 9,
    "do_sample": False,
    "eos_token_id": [2],
    "transformers_version": "5.0.0",
}


def folder_with(path, given):
    (path / FILE_NAME).write_text(json.dumps(given))
    return str(path)


def test_the_fields_that_change_a_default(tmp_path):
    folder = folder_with(tmp_path, GIVEN)
    expected = {"repetition_penalty": 1.05, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_tokens": 9}
    assert default_sampling_fields("auto", folder) == expected
    assert default_sampling_fields(folder, "anything") == expected
    assert default_sampling_fields("vllm", folder) == {}


def test_models_without_the_file_change_nothing(tmp_path):
    assert default_sampling_fields("auto", str(tmp_path)) == {}
    assert default_sampling_fields("auto", "") == {}
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    assert default_sampling_fields("auto", str(gguf)) == {}


@pytest.mark.parametrize("given", [{"temperature": -1}, {"top_p": "high"}, [1], {"top_k": 1.5}])
def test_a_file_that_cannot_be_honoured_is_an_error(tmp_path, given):
    with pytest.raises(ModelError, match=f'{FILE_NAME} can\'t be used: .*generation_config="vllm"'):
        default_sampling_fields("auto", folder_with(tmp_path, given))
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ModelError, match="can't be used"):
        default_sampling_fields("auto", str(tmp_path))


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(ParameterError, match='generation_config=.*"auto", "vllm" or a folder'):
        default_sampling_fields(str(tmp_path), "")


def test_it_is_said_on_stderr_when_a_default_is_replaced(capsys):
    note_defaults({})
    assert capsys.readouterr().err == ""
    note_defaults({"temperature": 0.6, "top_k": 20})
    assert "temperature=0.6, top_k=20" in capsys.readouterr().err


def test_calls_without_parameters_take_them_and_calls_with_parameters_do_not(capsys):
    llm = toy_llm(None)
    llm.default_fields = {"temperature": 0.0, "max_tokens": 5}
    assert len(llm.generate(list(PROMPT))[0].outputs[0].token_ids) <= 5
    assert "temperature=0.0, max_tokens=5" in capsys.readouterr().err
    assert llm.get_default_sampling_params(temperature=0.5) == SamplingParams(temperature=0.5, max_tokens=5)
    assert "max_tokens=5 (" in capsys.readouterr().err
    given = SamplingParams(seed=1, max_tokens=3)
    assert len(llm.generate(list(PROMPT), given)[0].outputs[0].token_ids) == 3
    assert capsys.readouterr().err == ""


def test_the_embedded_model_s_own_file_is_read():
    from draftproof.targets.embedded import embedded_folder

    assert (embedded_folder() / FILE_NAME).is_file()
    assert default_sampling_fields("auto", str(embedded_folder())) == {}
