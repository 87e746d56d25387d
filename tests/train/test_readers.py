"""What training writes is what the packagings' own code reads: `make_readers.py` has loaded the like with it."""

import json

import pytest
from safetensors.torch import load_file

from draftproof.train import loop
from tests.train.make_readers import CASES, FILE, settings_of

READ = json.loads(FILE.read_text(encoding="utf-8"))


def test_all_were_read():
    assert set(READ) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_tensors_are_those_that_were_read(name, target, text, tmp_path):
    loop.train(target, text, tmp_path, settings_of(name))
    tensors = load_file(str(tmp_path / "model.safetensors"))
    assert {key: list(tensor.shape) for key, tensor in tensors.items()} == READ[name]["tensors"]
