"""Norms by a layer norm of each number beside its opposite."""

import pytest
import torch

from draftproof.targets.norms import Norm, norm_beside_opposite

EPS = 1e-5


def states(num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    found = torch.randn(num_rows, size, generator=generator) * torch.logspace(-3, 3, num_rows)[:, None] + 0.5
    return found.to(dtype)


def expected(given: torch.Tensor, weight: torch.Tensor | float) -> torch.Tensor:
    wide = given.double()
    return wide / (wide.square().mean(dim=-1, keepdim=True) + EPS).sqrt() * weight


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 2**-22), (torch.bfloat16, 2**-8), (torch.float16, 2**-10)]
)
@pytest.mark.parametrize("size", [1, 7, 64, 576, 2048])
def test_the_norm_is_rounded_from_the_formula(size: int, dtype: torch.dtype, error: float) -> None:
    given = states(9, size, dtype)
    weight = torch.linspace(-1, 3, size).to(dtype)
    wanted = expected(given, weight.double())
    found = Norm(weight, EPS)(given)
    assert found.dtype == dtype and found.shape == given.shape
    # Half a unit in the last place of the result and, in float32, of the few steps before it.
    assert bool(((found.double() - wanted).abs() <= error * wanted.abs() + 1e-7).all())
    plain = norm_beside_opposite(given, None, EPS)
    assert bool(((plain.double() - expected(given, 1.0)).abs() <= error * expected(given, 1.0).abs() + 1e-7).all())


def test_a_row_of_zeros_is_zeros_and_of_nan_is_nan() -> None:
    given = torch.zeros(3, 64)
    given[1, 5] = torch.nan
    found = Norm(torch.ones(64), EPS)(given)
    assert bool((found[[0, 2]] == 0).all()) and bool(found[1].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_beside_any_others(dtype: torch.dtype) -> None:
    norm, given = Norm(torch.linspace(0.5, 1.5, 576).to(dtype), EPS), states(80, 576, dtype)
    whole = norm(given)
    for count in (*range(1, 18), 33, 57, 79):
        assert torch.equal(norm(given[:count]), whole[:count])
        assert torch.equal(norm(given[-count:]), whole[-count:])
    heads = states(40, 64, dtype).view(4, 10, 64)
    assert torch.equal(
        norm_beside_opposite(heads, None, EPS)[1:3, 2:5], norm_beside_opposite(heads[1:3, 2:5], None, EPS)
    )
