"""Drafters in 8 bits: how far their numbers are from the modules' own, and where they are used."""

import pytest
import torch
from torch import nn

from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned import eight_bit, load
from draftproof.drafters.learned.eight_bit import EightBitLinear, takes_eight_bits, to_eight_bits
from draftproof.drafters.learned.host_block import HostBlock
from draftproof.drafters.learned.load import load_block_drafter
from draftproof.drafters.learned.modules import Linear
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.targets.dtype import cpu_flags
from tests.drafters.learned.tiny import VOCAB_SIZE, tiny_target, write_drafter
from tests.targets.models import random_ids
from tests.threads import one_thread

HOST = torch.device("cpu")
# Of a block of two layers of random weights; one product of 96 inputs is off by 1 %.
MOST_ERROR = 0.05

pytestmark = pytest.mark.skipif(
    not takes_eight_bits(HOST, is_rounded=True), reason="this processor or PyTorch has no such products"
)


@pytest.fixture(autouse=True)
def on_one_thread():
    with one_thread():
        yield


def weights(num_outputs, num_inputs, seed=3):
    generator = torch.Generator().manual_seed(seed)
    # Rows of very different sizes: each has a scale of its own.
    return (
        torch.randn(num_outputs, num_inputs, generator=generator) * 10.0 ** torch.linspace(-3, 2, num_outputs)[:, None]
    )


def bounds(weight, features):
    """[…, out] how far a product may be off: each weight by half a step of its row, each input by a step of all."""
    row_steps = weight.abs().amax(dim=1) / (127 if "avx512_vnni" in cpu_flags() else 63)
    step = (features.max().clamp(min=0) - features.min().clamp(max=0)) / 255
    of_weights = features.abs().sum(dim=-1, keepdim=True) * row_steps / 2
    return of_weights + step * (weight.abs() + row_steps[:, None] / 2).sum(dim=1)


def check_products(biased, rows):
    weight, generator = weights(50, 96), torch.Generator().manual_seed(4)
    bias = torch.linspace(-5, 5, 50) if biased else None
    features = torch.randn(rows, 3, 96, generator=generator)
    found = EightBitLinear(weight, bias)(features)
    expected = nn.functional.linear(features, weight, bias)
    assert found.shape == expected.shape
    assert bool(((found - expected).abs() <= bounds(weight, features) + 1e-5 * expected.abs()).all())


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_products_are_the_float_ones_within_rounding(biased, rows):
    check_products(biased, rows)


def check_the_largest_bytes():
    """Inputs of 255 steps and weights of as many as there are, all of one sign."""
    weight, features = torch.tensor([[3.0], [-3.0]]).expand(2, 96), torch.full((2, 96), 0.5)
    found = EightBitLinear(weight, None)(features)
    torch.testing.assert_close(found, features @ weight.T, rtol=0.01, atol=0)


def test_the_largest_bytes_do_not_overflow():
    check_the_largest_bytes()


@pytest.mark.skipif("avx512_vnni" in cpu_flags(), reason="sums have 32 bits on this processor")
def test_bytes_whose_pairs_overflow_are_caught(monkeypatch):
    monkeypatch.setattr(eight_bit, "_LARGEST_IN_PAIRS", 127)
    with pytest.raises(AssertionError):
        check_the_largest_bytes()


def test_one_scale_for_all_outputs_is_caught(monkeypatch):
    made = EightBitLinear.__init__

    def flat(self, weight, bias):
        made(self, weight, bias)
        self._scales = self._scales.mean().expand(len(self._scales))

    monkeypatch.setattr(EightBitLinear, "__init__", flat)
    with pytest.raises(AssertionError):
        check_products(False, 1)


def test_an_output_of_zeros_stays_zero_and_types_are_kept():
    weight = weights(8, 16)
    weight[3] = 0.0
    product = EightBitLinear(weight.bfloat16(), None)
    found = product(torch.ones(2, 16, dtype=torch.bfloat16))
    assert found.dtype == torch.bfloat16 and not found[:, 3].any() and bool(found.isfinite().all())
    assert torch.equal(product(torch.zeros(2, 16)), torch.zeros(2, 8))


def test_it_says_nothing_about_what_pytorch_may_drop(recwarn):
    EightBitLinear(weights(4, 8), None)(torch.ones(1, 8))
    assert not recwarn.list


@pytest.mark.parametrize(
    ("is_rounded", "device", "flags", "missing", "takes"),
    [
        (True, "cpu", {"avx512_vnni"}, None, True),
        (True, "cpu", {"avx2"}, None, True),
        (True, "cpu", {"bf16"}, None, False),
        (False, "cpu", {"avx512_vnni"}, None, False),
        (True, "cuda", {"avx512_vnni"}, None, False),
        (True, "cpu", {"avx512_vnni"}, "fbgemm_pack_quantized_matrix", False),
    ],
)
def test_where_it_is_used(monkeypatch, is_rounded, device, flags, missing, takes):
    monkeypatch.setattr(eight_bit, "cpu_flags", lambda: frozenset(flags))
    if missing is not None:
        monkeypatch.delattr(torch, missing)
    assert takes_eight_bits(torch.device(device), is_rounded=is_rounded) is takes


def test_what_reads_the_targets_hidden_states_is_left_alone():
    module = nn.Module()
    module.fc, module.eh_proj, module.other, module.plain = Linear(4, 4), Linear(4, 4), Linear(4, 4), nn.Linear(4, 4)
    to_eight_bits(module)
    kinds = {name: type(child) for name, child in module.named_children()}
    assert kinds == {"fc": Linear, "eh_proj": Linear, "other": EightBitLinear, "plain": EightBitLinear}


@pytest.mark.parametrize("method", ["dspark half", "dflash"])
def test_a_block_is_the_modules_own_within_rounding(tmp_path, monkeypatch, method):
    """Hidden states of a block on the host, in 8 bits, over a context that was appended in two parts."""
    write_drafter(method, tmp_path, block_size=6)
    monkeypatch.setattr(load, "product_kind", lambda *_, **__: None)
    target = tiny_target(num_slots=2)
    drafter = load_block_drafter(str(tmp_path), target, SamplerChain(), method=method.split()[0])
    assert drafter.host is None
    params = SamplerChain().resolve(SamplingParams(temperature=1.0), None, VOCAB_SIZE)
    ids = random_ids(20, seed=2)

    def hidden():
        drafter.release(0)
        target.release(0)
        for length in (9, 20):
            target.prefill(0, ids[target.length(0) : length - 1])
            request = DraftRequest(0, ids[:length], 5, KeyedNoise(4), True, params, History(ids[:length]))
            drafter.propose([request])
        return drafter.block_hidden([request])[0]

    expected = hidden()
    drafter.host = HostBlock(drafter.model, EightBitLinear, torch.float32)
    found = hidden()
    assert not torch.equal(found, expected)
    assert float((found - expected).norm() / expected.norm()) < MOST_ERROR
