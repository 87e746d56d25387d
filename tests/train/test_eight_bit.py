"""8-bit weights: rounded by half a step at most, read back by the loader, damaged ones refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.errors import ModelError
from draftproof.train.eight_bit import QUANTIZATION, to_eight_bit


def _folder(tmp_path, tensors):
    save_file(tensors, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": QUANTIZATION}))
    return Checkpoint(tmp_path)


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(4)
    matrix = torch.randn(6, 40, generator=generator) * torch.tensor([[1e-3], [1.0], [50.0], [0.0], [1.0], [1.0]])
    return {"a.weight": matrix, "norm.weight": torch.ones(5), "d2t": torch.arange(3), "a.bias": torch.zeros(6)}


def test_rows_come_back_within_half_a_step(tensors, tmp_path):
    checkpoint = _folder(tmp_path, to_eight_bit(tensors))
    assert set(checkpoint.names) == set(tensors)
    back = checkpoint.tensor("a.weight")
    step = tensors["a.weight"].abs().amax(dim=1, keepdim=True) / 127
    assert ((back - tensors["a.weight"]).abs() <= 0.5001 * step).all()
    assert (back - tensors["a.weight"]).abs().max() > 0
    assert checkpoint.shape("a.weight") == (6, 40)
    for name in ("norm.weight", "d2t", "a.bias"):
        assert torch.equal(checkpoint.tensor(name), tensors[name])


def test_again_is_the_same(tensors):
    """What was rounded once is on the grid."""
    once = to_eight_bit(tensors)
    again = to_eight_bit({"a.weight": once["a.weight"].float() * once["a.weight_scale"]})
    assert torch.equal(once["a.weight"], again["a.weight"])


def test_scales_that_do_not_fit_are_refused(tensors, tmp_path):
    made = to_eight_bit(tensors)
    made["a.weight_scale"] = made["a.weight_scale"][:4].clone()
    with pytest.raises(ModelError, match=r"a.weight_scale has shape \(4, 1\)"):
        _folder(tmp_path, made).tensor("a.weight")
    made = to_eight_bit(tensors)
    made["a.weight"] = made["a.weight"].float()
    with pytest.raises(ModelError, match="torch.float32"):
        _folder(tmp_path, made).tensor("a.weight")


def test_what_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="x.weight"):
        to_eight_bit({"x.weight": torch.tensor([[1.0, float("nan")]])})


def test_the_file_is_half_as_large(tensors, tmp_path):
    _folder(tmp_path, to_eight_bit(tensors))
    stored = load_file(str(tmp_path / "model.safetensors"))
    assert stored["a.weight"].dtype == torch.int8 and stored["a.weight_scale"].shape == (6, 1)
