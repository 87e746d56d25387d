"""Joined projections and one-call norms compute what the model's own modules compute."""

import pytest
import torch
from torch import nn

from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.fused import Family, FamilyPart, OneCallNorm, fuse_norms, fuse_projections
from draftproof.targets.hf import HFTarget
from draftproof.targets.products import pack_linears
from tests.targets.models import ARCHITECTURES, plain_logits, random_ids, score_one, tiny_model


def fused(name: str, **changes):
    model = tiny_model(name, **changes)
    assert fuse_projections(model) == 6
    pack_linears(model)
    fuse_norms(model)
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_fused_model_computes_the_same(name: str) -> None:
    token_ids = random_ids(40)
    want = plain_logits(tiny_model(name), token_ids)
    target = HFTarget(fused(name))
    target.prefill(0, token_ids[:13])
    assert torch.allclose(score_one(target, 0, token_ids[13:]), want[13:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_fused_model_is_invariant(name: str) -> None:
    target, token_ids = HFTarget(fused(name), invariant=True), random_ids(30)
    whole = score_one(target, 0, token_ids)
    target.rewind(0, 0)
    assert torch.equal(torch.cat([score_one(target, 0, [token_id]) for token_id in token_ids]), whole)


def test_norms_are_replaced_only_where_the_bits_stay() -> None:
    """Llama's norm is one call of torch's; Gemma's has another formula and stays."""
    llama, gemma = tiny_model("llama"), tiny_model("gemma3")
    want = plain_logits(llama, random_ids(20))
    assert fuse_norms(llama) == 7 and fuse_norms(gemma) == 0
    assert torch.equal(plain_logits(llama, random_ids(20)), want)
    assert isinstance(llama.model.norm, OneCallNorm)


def linears(*sizes: int, bias: bool = False) -> list[nn.Linear]:
    generator = torch.Generator().manual_seed(1)
    found = []
    for size in sizes:
        linear = nn.Linear(16, size, bias=bias, device="meta")
        linear.weight = nn.Parameter(torch.randn(size, 16, generator=generator), requires_grad=False)
        if bias:
            linear.bias = nn.Parameter(torch.randn(size, generator=generator), requires_grad=False)
        found.append(linear)
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@torch.no_grad()
def test_parts_may_be_asked_for_in_any_order(bias: bool, order: tuple[int, ...]) -> None:
    parts, generator = linears(24, 8, 8, bias=bias), torch.Generator().manual_seed(2)
    family = Family(parts)
    for _ in range(2):
        features = torch.randn(1, 5, 16, generator=generator)
        for index in order:
            assert torch.allclose(family.part(features, index), parts[index](features), atol=1e-5)
    assert family._features is None


@torch.no_grad()
def test_other_features_are_never_answered_with_parts_that_were_left() -> None:
    parts, generator = linears(8, 8), torch.Generator().manual_seed(2)
    family = Family(parts)
    first, second = (torch.randn(1, 1, 16, generator=generator) for _ in range(2))
    family.part(first, 0)
    for features in (second, first, first):
        assert torch.allclose(family.part(features, 1), parts[1](features), atol=1e-5)


def test_what_is_not_alike_is_left_alone() -> None:
    model = tiny_model("llama")
    attention = model.model.layers[0].self_attn
    attention.k_proj.bias = nn.Parameter(torch.zeros(attention.k_proj.out_features))
    assert fuse_projections(model) == 5
    assert type(attention.q_proj) is nn.Linear
    assert isinstance(model.model.layers[1].self_attn.q_proj, FamilyPart)
    assert isinstance(model.model.layers[1].self_attn.q_proj.family.product, PackedLinear)


@pytest.mark.parametrize("before", [False, True])
def test_a_packed_layer_is_called_directly_and_its_hooks_all_the_same(before: bool) -> None:
    layer, features, seen = PackedLinear(torch.eye(4), None), torch.arange(4.0)[None], []
    assert torch.equal(layer(features), features) and not seen
    register = layer.register_forward_pre_hook if before else layer.register_forward_hook
    handle = register(lambda *given: seen.append(len(given)))
    assert torch.equal(layer(features), features) and seen == [2 if before else 3]
    handle.remove()
    layer(features)
    assert len(seen) == 1
