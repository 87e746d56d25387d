"""Products with what follows them in one kernel, on a CUDA device: of numbers whose sums are exact, to the bit."""

import pytest
import torch
from torch import nn

from draftproof.targets.static import products
from draftproof.targets.static.operations import KernelOperations, Norm

pytestmark = pytest.mark.gpu


def drawn(*size, seed, dtype):
    """Eighths, -1 to 1 of them."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randint(-1, 2, size, generator=generator, device="cuda") / 8).to(dtype)


def linear(size, depth, seed, dtype):
    product = nn.Linear(depth, size, bias=False, device="cuda", dtype=dtype)
    product.weight.data.copy_(drawn(size, depth, seed=seed, dtype=dtype))
    return product


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [1, 16, 40, 64])
def test_parts_and_gates_are_exact(num_tokens, dtype):
    operations, states = KernelOperations(), drawn(num_tokens, 3072, seed=1, dtype=dtype)
    down = linear(2048, 3072, 2, dtype)
    found = products.split_tiling(down, states)
    assert found is not None and found[1].splits > 1
    whole = states.double() @ down.weight.double().T
    assert torch.equal(products.parts(states, *found).double().sum(0), whole)
    norm = Norm(drawn(2048, seed=3, dtype=dtype), 1e-6)
    residual = drawn(num_tokens, 2048, seed=4, dtype=dtype)
    one, other = residual.clone(), residual.clone()
    normed = operations.add_product_norm(one, down, states, norm)
    assert torch.equal(normed, operations.add_norm(other, whole.to(dtype), norm)) and torch.equal(one, other)
    gate_up = linear(2 * 4096, 3072, 5, dtype)
    assert (products.gated_tiling(gate_up, states) is None) == (num_tokens > products.MOST_GATED)
    joined = (states.double() @ gate_up.weight.double().T).to(dtype)
    assert torch.equal(operations.gated(gate_up, states), operations.gate(joined))
