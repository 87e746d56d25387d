"""Fewer calls for the same arithmetic, for narrow forwards on a CPU, where a call costs as much as its work.

- Projections of one input (q, k, v; gate, up) become one packed product, cut into their parts. A transformers model
  calls them one after another on the same tensor: the first call computes all parts, the others take theirs.
- A root-mean-square norm becomes one call of torch's, where that gives the very bits of the model's own module on a
  probe; where it doesn't (another formula, rounding on the way), the module stays.

What a forward computes is unchanged but for the last bits of the products, for plain and verified steps alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import rms_norm

from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.products import Product, in_threads

FAMILIES: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of projections that read one input."""
PROBE_SEED: Final = 31


class Family:
    """Several projections as one; `part(features, index)` is one of them, [..., its out_features]."""

    def __init__(self, linears: Sequence[nn.Linear], product: Product = PackedLinear) -> None:
        self.sizes = [linear.out_features for linear in linears]
        weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None
        self.product = product(weight, bias)
        self._features: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    def part(self, features: torch.Tensor, index: int) -> torch.Tensor:
        """Computed with the others the first time that `features` is seen; each part is handed out once."""
        if self._features is not features or self._parts[index] is None:
            self._features, self._parts = features, list(torch.split(self.product(features), self.sizes, dim=-1))
        found, self._parts[index] = self._parts[index], None
        if all(part is None for part in self._parts):
            self._features = None
        assert found is not None
        return found


class FamilyPart(nn.Module):
    """Stands where one of a family's projections stood."""

    def __init__(self, family: Family, index: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.family, self._index = family, index

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.family.part(features, self._index)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, one product with its neighbours"


class OneCallNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)
        self.eps, self._shape = eps, tuple(weight.shape)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self._shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self._shape[0]}, eps={self.eps}"


def fuse_projections(model: Any, product: Product = PackedLinear) -> int:
    """Join the model's projections of one input in a `product`; returns how many families were joined. Their weights
    are freed."""
    found: list[tuple[Any, tuple[str, ...]]] = []
    makes: list[Callable[[], Family]] = []
    for module in model.modules():
        for names in FAMILIES:
            linears: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(linear) is nn.Linear for linear in linears) and _alike(linears):
                found.append((module, names))
                makes.append(partial(Family, linears, product))
    for (module, joined), family in zip(found, in_threads(makes), strict=True):
        for index, name in enumerate(joined):
            setattr(module, name, FamilyPart(family, index, getattr(module, name)))
    return len(found)


def fuse_norms(model: Any) -> int:
    """Replace the norms that one call computes to the bit; returns how many were replaced."""
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            found = _one_call_norm(child) if type(child).__name__.endswith("RMSNorm") else None
            if found is not None:
                setattr(module, name, found)
                count += 1
    return count


def _alike(linears: Sequence[Any]) -> bool:
    first = linears[0]
    return all(
        linear.in_features == first.in_features and (linear.bias is None) == (first.bias is None) for linear in linears
    )


@torch.no_grad()
def _one_call_norm(norm: Any) -> OneCallNorm | None:
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return None
    generator = torch.Generator().manual_seed(PROBE_SEED)
    probe = 3 * torch.randn(2, 9, weight.shape[0], generator=generator).to(weight)
    found = OneCallNorm(weight, eps)
    return found if torch.equal(found(probe), norm(probe)) else None
