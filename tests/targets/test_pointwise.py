"""Operations that look at a number's place in a tensor are found, and no policy that lets it matter is taken."""

import pytest
import torch
from torch import nn

from draftproof.targets.pointwise import Recorded, pointwise_agrees

LANES = 64


class TailSensitive(nn.Module):
    """A vector loop of LANES numbers and a scalar one for the rest, which rounds large results down."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.ops.draftproof_tests.tail_sensitive(values)


@pytest.fixture(scope="module", autouse=True)
def library():
    made = torch.library.Library("draftproof_tests", "DEF")
    made.define("tail_sensitive(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))

    def tail_sensitive(values: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.silu(values.float())
        tail = out.flatten()[values.numel() // LANES * LANES :]
        tail[tail > 3.0] *= 1 - 2.0**-8
        return out.to(values.dtype)

    made.impl("tail_sensitive", tail_sensitive, "CPU")
    yield
    made._destroy()


def recorded(layer: nn.Module, size: int, dtype: torch.dtype, num_tokens: int = 1) -> Recorded:
    with torch.no_grad(), Recorded(num_tokens) as found:
        layer(torch.ones(num_tokens, size, dtype=dtype))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("size", "num_tokens", "agrees"), [
    (LANES, None, True), (3 * LANES, None, True), (LANES // 2, None, False), (100, None, False), (1, None, False),
    (LANES // 2, 16, True), (100, 16, True), (1, 16, True), (5, 16, False), (LANES // 2, 3, False),
])  # fmt: skip
def test_a_tail_of_its_own_is_found(size: int, num_tokens: int | None, agrees: bool, dtype: torch.dtype) -> None:
    """It doesn't matter where every token has whole vectors, or every forward has no tail."""
    found = recorded(TailSensitive(), size, dtype)
    assert len(found.found) == 1
    assert pointwise_agrees(found, num_tokens) is agrees


def test_each_kind_and_size_is_asked_once() -> None:
    class Layer(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            gate = torch.sigmoid(values[:, :1])
            both = nn.functional.gelu(values, approximate="tanh") + nn.functional.gelu(values)
            return nn.functional.gelu(both * gate)

    asked = recorded(Layer(), 6, torch.bfloat16, num_tokens=4).found
    assert sorted((key[0].overloadpacket.__name__, key[1]) for key in asked) == [
        ("gelu", 6),
        ("gelu", 6),
        ("sigmoid", 1),
    ]


def test_exactly_rounded_operations_are_not_asked() -> None:
    class Layer(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return -(values + 1).relu() * 2 / 3

    assert recorded(Layer(), 8, torch.float32).found == {}


def test_the_probe_refuses_what_is_found() -> None:
    """Through a whole model: silu that looks at its place rules the step policy out, and 16 tokens have no tail."""
    from draftproof.targets.hf import HFTarget
    from draftproof.targets.invariant import probe
    from draftproof.targets.shapes import FixedShapes, StepShapes
    from tests.targets.models import tiny_model

    model = tiny_model("llama", torch.bfloat16, intermediate_size=100)
    for layer in model.model.layers:
        layer.mlp.act_fn = TailSensitive()
    target = HFTarget(model, num_slots=2, max_model_len=1000)
    said = probe(target, StepShapes(16))
    assert said is not None and ("pointwise" in said or "changes token" in said)
    assert "pointwise" not in (probe(target, FixedShapes(16)) or "")
