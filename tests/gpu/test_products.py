"""Products with what follows them in one kernel, on a CUDA device: of numbers whose sums are exact, to the bit."""

import random

import pytest
import torch
from torch import nn

from draftproof import LLM, SamplingParams
from draftproof.targets.hf import HFTarget
from draftproof.targets.norms import Norm
from draftproof.targets.static import products
from draftproof.targets.static.operations import KernelOperations
from tests.targets.models import VOCAB_SIZE, tiny_model

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
@pytest.mark.parametrize("num_tokens", [1, 16, 40, 64, 128])
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [136, 256])
def test_halves_are_exact(num_tokens, dtype):
    operations, states = KernelOperations(), drawn(num_tokens, 4096, seed=13, dtype=dtype)
    down, norm = linear(2048, 4096, 14, dtype), Norm(drawn(2048, seed=15, dtype=dtype), 1e-6)
    weight = products.halved(down, states)
    assert weight is not None
    parts = products.halves(states, weight)
    assert parts.dtype == torch.float32
    for part, (rows, columns) in zip(parts, zip(states.chunk(2, 1), weight.chunk(2, 1), strict=True), strict=True):
        assert torch.equal(part.double(), rows.double() @ columns.double().T)
    residual = drawn(num_tokens, 2048, seed=16, dtype=dtype)
    one, other = residual.clone(), residual.clone()
    normed = operations.add_product_norm(one, down, states, norm)
    whole = (states.double() @ weight.double().T).to(dtype)
    assert torch.equal(normed, operations.add_norm(other, whole, norm)) and torch.equal(one, other)


@pytest.mark.parametrize(("num_tokens", "size", "depth"), [(128, 2048, 4096), (264, 2048, 4096), (256, 2048, 2048)])
def test_halves_are_of_deep_products_of_many_tokens(num_tokens, size, depth):
    states = drawn(num_tokens, depth, seed=17, dtype=torch.bfloat16)
    assert products.halved(linear(size, depth, 18, torch.bfloat16), states) is None


def wave(device_columns: int) -> int:
    """Columns of gate that are one wave of tiles, the last of which ends early."""
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    return products.WIDE_COLUMNS * processors - device_columns


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_tokens", [17, 64, 100, 128, 200, 256])
def test_gates_of_more_tokens_are_exact(num_tokens, dtype):
    if not products.has_wide_gates(torch.device("cuda:0")):
        pytest.skip("another release of Triton, or another kind of device")
    operations, size = KernelOperations(), wave(40)
    states, gate_up = drawn(num_tokens, 640, seed=6, dtype=dtype), linear(2 * size, 640, 7, dtype)
    found = products.wide_rows(gate_up, states)
    assert found is not None and (found[1] >= num_tokens)
    joined = (states.double() @ gate_up.weight.double().T).to(dtype)
    expected = operations.gate(joined)
    assert torch.equal(operations.gated(gate_up, states), expected)
    swapped = torch.cat(gate_up.weight.detach().chunk(2)[::-1])
    assert not torch.equal(products.gated_wide(states, swapped, found[1]), expected)


def test_a_row_of_a_wide_gate_has_the_same_bits_whatever_the_others_are():
    if not products.has_wide_gates(torch.device("cuda:0")):
        pytest.skip("another release of Triton, or another kind of device")
    generator = torch.Generator("cuda").manual_seed(8)
    size = wave(0)
    gate_up = nn.Linear(1024, 2 * size, bias=False, device="cuda", dtype=torch.bfloat16)
    gate_up.weight.data.normal_(0.0, 0.03, generator=generator)
    states, others = (torch.randn(128, 1024, generator=generator, device="cuda").bfloat16() for _ in range(2))
    others[7] = states[7]
    found, again = (KernelOperations().gated(gate_up, rows) for rows in (states, others))
    assert torch.equal(found[7], again[7]) and not torch.equal(found, again)
    gate, up = (states.float() @ gate_up.weight.float().T).bfloat16().float().chunk(2, dim=1)
    torch.testing.assert_close(found.float(), torch.nn.functional.silu(gate) * up, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("num_tokens", [32, 64, 128])
@pytest.mark.parametrize("count", [1, 16, 17, 32])
def test_wanted_rows_have_the_same_bits_however_few_they_are(num_tokens, count):
    """Of numbers whose sums are rounded: small tiles add up as large ones do. Of the other rows nothing is taken."""
    generator = torch.Generator("cuda").manual_seed(12)
    states = torch.randn(num_tokens, 3072, generator=generator, device="cuda").bfloat16()
    wanted, operations = torch.tensor([count], dtype=torch.int32, device="cuda"), KernelOperations()
    norm = Norm(torch.rand(2048, generator=generator, device="cuda").bfloat16(), 1e-6)
    down, gate_up = (
        nn.Linear(3072, size, bias=False, device="cuda", dtype=torch.bfloat16) for size in (2048, 2 * wave(0))
    )
    for product in (down, gate_up):
        product.weight.data.normal_(0.0, 0.05, generator=generator)
    everything, results = torch.tensor([num_tokens], dtype=torch.int32, device="cuda"), []
    for rows in (everything, wanted):
        residual = torch.ones(num_tokens, 2048, device="cuda", dtype=torch.bfloat16)
        normed = operations.add_product_norm(residual, down, states, norm, rows)
        gated = operations.gated(gate_up, states, rows)
        results.append([part[:count].clone() for part in (normed, residual, gated)])
        states[count:] = float("nan")
    for whole, found in zip(*results, strict=True):
        assert torch.equal(whole, found)


@pytest.mark.parametrize("size", [4096, 14336])
def test_tiles_that_are_no_wave_are_left_to_the_library(size):
    gate_up = nn.Linear(64, 2 * size, bias=False, device="cuda", dtype=torch.bfloat16)
    assert products.wide_rows(gate_up, drawn(64, 64, seed=9, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize("width", [64, 128])
def test_on_is_off_with_layers_that_are_wide_enough_for_them(width, monkeypatch):
    size = wave(0) // 768 * 768  # whole tiles for down's shares, too
    model = tiny_model(
        "qwen3", torch.bfloat16, hidden_size=2048, intermediate_size=size, num_hidden_layers=2, initializer_range=0.05
    ).cuda()
    used, gated_wide, parts = set(), products.gated_wide, products.parts
    monkeypatch.setattr(products, "gated_wide", lambda *given: used.add("gate") or gated_wide(*given))
    monkeypatch.setattr(products, "parts", lambda *given: used.add("shares") or parts(*given))
    target = HFTarget(model, num_slots=4, invariant=True, width=width)
    source = random.Random(6)
    prompts = [[source.randrange(VOCAB_SIZE) for _ in range(6)] * 2 for _ in range(6)]
    params = [SamplingParams(seed=seed, max_tokens=30, detokenize=False, temperature=0.8) for seed in range(6)]
    config = {"method": "ngram", "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    plain = LLM.from_target(target, None).generate(prompts, params)
    speculative = LLM.from_target(target, None, speculative_config=config)
    together = speculative.generate(prompts, params)
    alone = [speculative.generate([prompt], s)[0] for prompt, s in zip(prompts, params, strict=True)]
    for outputs in (together, alone):
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in plain]
    assert sum(o.metrics.speculative_decoding["num_draft_tokens"] for o in together) > 0
    assert used == ({"gate", "shares"} if products.has_wide_gates(torch.device("cuda:0")) else {"shares"})
