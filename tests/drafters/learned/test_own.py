"""The drafters that come with the package: complete, small enough, and only for the model they were trained for."""

import json
from types import SimpleNamespace

import pytest

from draftproof.config import LEARNED_METHODS, SpeculativeConfig
from draftproof.drafters.learned import own
from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.own import own_drafter, own_methods
from draftproof.errors import ParameterError
from draftproof.targets.embedded import embedded_folder, is_embedded

MOST_BYTES = 60_000_000


def _target(name):
    return SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(_name_or_path=name)))


def test_each_has_its_papers():
    assert set(own_methods()) <= set(LEARNED_METHODS)
    total = 0
    for method in own_methods():
        folder = own.FOLDER / method
        total += (folder / "model.safetensors").stat().st_size
        assert Checkpoint(folder).names
        assert "Apache" in (folder / "README.md").read_text(encoding="utf-8")
        lines = (folder / "training.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[0])["settings"]["method"] == method
    assert total < MOST_BYTES


def test_found_for_the_embedded_model_alone(tmp_path, monkeypatch):
    """Also for a folder that another cache holds; not for a model of another name."""
    name = str(embedded_folder())
    assert is_embedded(name) and not is_embedded("SmolLM2-135M-Instruct")
    monkeypatch.setattr(own, "FOLDER", tmp_path)
    (tmp_path / "mtp").mkdir()
    (tmp_path / "mtp" / "config.json").write_text("{}")
    assert own_drafter("mtp", _target(name)) == str(tmp_path / "mtp")
    with pytest.raises(ParameterError, match="brings along drafters of the methods mtp"):
        own_drafter("dspark", _target(name))
    with pytest.raises(ParameterError, match="for the embedded SmolLM2-135M-Instruct alone"):
        own_drafter("mtp", _target("owner/other"))


@pytest.mark.parametrize("method", LEARNED_METHODS)
def test_no_model_is_allowed(method):
    assert SpeculativeConfig(method=method).model is None


def test_a_model_where_none_is_used_and_none_where_one_must_be():
    with pytest.raises(ParameterError, match="unset with the methods"):
        SpeculativeConfig(method="ngram", model="x")
    with pytest.raises(ParameterError, match="with the method draft_model"):
        SpeculativeConfig(method="draft_model")
