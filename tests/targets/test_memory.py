"""The cache's size: planned, refused with what fits, and kept to; copies are the bits of a fresh prefill."""

import pytest
import torch

from draftproof.errors import ModelError, ParameterError
from draftproof.targets import memory
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cache import LayerShape
from draftproof.targets.hf import HFTarget
from draftproof.targets.memory import plan_columns
from draftproof.targets.products import pack_linears
from tests.targets.models import random_ids, score_one, tiny_model

SHAPES = [LayerShape(2, 8, 8, torch.float32, torch.device("cpu"))] * 3
PER_TOKEN = 3 * 2 * 16 * 4


def plan(**kw):
    return plan_columns(SHAPES, **{"num_slots": 4, "max_model_len": 1000, **kw})


def test_by_default_every_slot_may_be_full():
    assert plan() == 4 * 1024
    assert plan(max_num_cached_tokens=10**9) == 4 * 1024
    assert plan(max_num_cached_tokens=2000) == 1792
    assert plan(cache_memory=2048 * PER_TOKEN + 1) == 2048


def test_without_a_size_the_cache_takes_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3000 * PER_TOKEN)
    assert plan() == 2048
    with pytest.raises(ParameterError, match=f"a token takes {PER_TOKEN} bytes; pass max_model_len=2048 or less"):
        plan(max_model_len=5000)


def test_what_does_not_fit_is_refused_and_says_what_does(monkeypatch):
    with pytest.raises(
        ParameterError, match="max_num_cached_tokens=900: must be enough for one sequence.*: 1024 tokens"
    ):
        plan(max_num_cached_tokens=900)
    with pytest.raises(ParameterError, match="pass max_model_len=256 or less"):
        plan(cache_memory=300 * PER_TOKEN)
    with pytest.raises(ParameterError, match="unset where max_num_cached_tokens is given"):
        plan(cache_memory=1, max_num_cached_tokens=1)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2000 * PER_TOKEN)
    with pytest.raises(ParameterError, match="at most what is free on cpu: .* 1280 tokens"):
        plan(max_num_cached_tokens=4096)


def test_free_memory_of_this_machine_is_known_or_none():
    free = memory.free_bytes(torch.device("cpu"))
    assert free is None or free > 0


def test_a_full_cache_refuses_and_goes_on():
    target = HFTarget(tiny_model("llama"), num_slots=3, max_model_len=500, max_num_cached_tokens=600)
    assert target.max_num_cached_tokens == 512
    target.prefill(0, random_ids(100))
    target.prefill(1, random_ids(100))
    before = score_one(target, 0, [1])
    with pytest.raises(ModelError, match="the cache holds 512 tokens"):
        target.prefill(2, [1])
    target.rewind(0, 100)
    assert torch.equal(score_one(target, 0, [1]), before) and target.length(2) == 0
    target.release(1)
    target.prefill(2, [1])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("length", [16, 100, 257])
def test_a_copied_prefix_has_the_bits_of_a_fresh_prefill(name, length):
    """Under invariant execution; and the source goes on as if nothing had been."""
    model, token_ids = tiny_model(name), random_ids(300)
    pack_linears(model)
    target = HFTarget(model, num_slots=3, invariant=True)
    target.prefill(0, token_ids[:length])
    score_one(target, 0, token_ids[length : length + 9])
    target.copy(0, 2, length)
    copied = score_one(target, 2, token_ids[length : length + 12])
    target.prefill(1, token_ids[:length])
    assert torch.equal(score_one(target, 1, token_ids[length : length + 12]), copied)
    target.rewind(0, length + 2)
    assert torch.equal(score_one(target, 0, token_ids[length + 2 : length + 12]), copied[2:])


def test_copies_are_checked():
    target = HFTarget(tiny_model("llama"), num_slots=2)
    target.prefill(0, [1, 2, 3])
    for source, slot, length in ((0, 0, 1), (0, 1, 4), (0, 1, -1)):
        with pytest.raises(ParameterError, match="at most 3, what another slot holds"):
            target.copy(source, slot, length)


class Breaking(torch.nn.Module):
    """The second layer's output projection, which writes NaN into the cache's later layers, or raises."""

    def __init__(self, linear):
        super().__init__()
        self.linear, self.mode = linear, "sound"

    def forward(self, features):
        if self.mode == "raises":
            raise RuntimeError("a kernel failed")
        return self.linear(features) * (torch.nan if self.mode == "nan" else 1)


@pytest.mark.parametrize("mode", ["raises", "nan"])
def test_a_forward_that_breaks_leaves_nothing_behind(mode):
    """NaN behind a slot's length would leak through the masks of whoever has the columns next."""
    model, token_ids = tiny_model("llama"), random_ids(40)
    attention = model.model.layers[1].self_attn
    attention.o_proj = Breaking(attention.o_proj)
    target = HFTarget(model, num_slots=2)
    target.prefill(0, token_ids)
    want = score_one(target, 0, [1, 2, 3])
    target.rewind(0, 40)
    attention.o_proj.mode = mode
    if mode == "raises":
        with pytest.raises(RuntimeError):
            target.score([ScoreRequest(0, (5, 6)), ScoreRequest(1, (7,))])
        assert (target.length(0), target.length(1)) == (40, 0)
    else:
        rows = target.score([ScoreRequest(0, (5, 6)), ScoreRequest(1, (7,))])
        assert torch.isnan(rows[0]).all()
        target.rewind(0, 40)
        target.release(1)
    attention.o_proj.mode = "sound"
    assert all(torch.isfinite(buffer).all() for g in target.cache.groups for buffer in (g.keys, g.values))
    assert torch.equal(score_one(target, 0, [1, 2, 3]), want)
