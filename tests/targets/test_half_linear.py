"""Weights in float16 under arithmetic in float32: which numbers they are, what is computed, and in what order."""

import pytest
import torch
from torch import nn

from draftproof import LLM, SamplingParams
from draftproof.config import SpeculativeConfig
from draftproof.drafters import make_drafter
from draftproof.errors import ParameterError
from draftproof.sampling import SamplerChain
from draftproof.targets import dtype as dtypes
from draftproof.targets import summation
from draftproof.targets.dtype import can_halve, resolve_format
from draftproof.targets.fused import fuse_norms, fuse_projections
from draftproof.targets.half_linear import HalfLinear, cut, has_halves, round_weights, too_large
from draftproof.targets.hf import HFTarget
from draftproof.targets.load import load_target
from draftproof.targets.products import pack_linears
from tests.targets.models import ARCHITECTURES, VOCAB_SIZE, plain_logits, random_ids, score_one, tiny_model
from tests.targets.test_summation import in_halves, one_sum

CPU = torch.device("cpu")
needs_halves = pytest.mark.skipif(not can_halve(CPU), reason="PyTorch has no product over float16 on this processor")
X86 = frozenset({"avx2", "f16c", "fma"})


def rows(num_rows: int, num_columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(seed))


def halved(name: str, **changes):
    """A model with weights in float16, as a target is loaded."""
    model = tiny_model(name, **changes)
    round_weights(model)
    assert fuse_projections(model, HalfLinear) == 6
    pack_linears(model, HalfLinear)
    fuse_norms(model)
    return model


@needs_halves
def test_weights_are_rounded_to_the_nearest() -> None:
    """Down to float16's smallest number, halfway cases to the even one."""
    exponents = torch.arange(-26, 16, dtype=torch.float32)
    weight = (
        torch.exp2(exponents)[:, None] * (1 + torch.arange(32) / 2**12) * torch.tensor([[1.0], [-1.0]]).repeat(21, 1)
    )
    assert torch.equal(HalfLinear(weight, None).dense_weight(), weight.half().float())


@needs_halves
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (64, 576), (100, 1537)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 40])
def test_a_product_is_that_of_the_rounded_weights(shape: tuple[int, int], biased: bool, num_rows: int) -> None:
    weight, bias = rows(*shape), rows(1, shape[0], seed=2)[0] if biased else None
    features = rows(num_rows, 2 * shape[1], seed=3)[:, ::2]
    exact = features.double() @ weight.half().double().T + (0 if bias is None else bias.double())
    found = HalfLinear(weight, bias)(features)
    assert found.dtype == torch.float32
    size = (features.double().abs() @ weight.half().double().abs().T).amax() if num_rows else torch.tensor(0.0)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=float(size) * shape[1] * 2**-24 + 2**-22)


@pytest.mark.parametrize("counts", [(6,), (3, 4, 5, 6, 8, 9, 12, 48), (1, 2, 3, 4), (3, 6, 12, 24, 384)])
def test_rows_are_cut_into_numbers_that_agree(counts: tuple[int, ...]) -> None:
    for num_rows in range(600):
        sizes = cut(num_rows, counts)
        assert set(sizes) <= set(counts)
        # The last piece alone has rows of zeros beside it.
        assert sum(sizes[:-1]) < num_rows <= sum(sizes) if num_rows else sizes == ()
    assert all(cut(count, counts) == (count,) for count in counts)


def blocks_of_three_agree(self: HalfLinear, features: torch.Tensor) -> torch.Tensor:
    """A product whose kernel takes 6 rows at a time, and 1 or 2 that are left in another order."""
    weight, found = self.dense_weight(), []
    for part in torch.split(features.flatten(0, -2), 6):
        found.append((one_sum if len(part) > 2 else in_halves)(part, weight))
    return torch.cat(found).view(*features.shape[:-1], -1)


@needs_halves
@pytest.mark.parametrize("product", [HalfLinear._product, blocks_of_three_agree], ids=["the machine's", "blocks"])
def test_any_number_of_rows_has_the_bits_of_any_other(monkeypatch, product) -> None:
    monkeypatch.setattr(HalfLinear, "_product", product)
    model = nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 7, bias=False))
    assert pack_linears(model, HalfLinear) == 2
    features = summation._cancelling(75, 64, torch.float32, CPU, opposite=False)
    for _ in range(2):  # asked again, what was found before has no say
        summation.limit_rows(model)
        assert summation.row_window(model) == (model[0].counts[0], None)
    expected = torch.cat([model(row[None]) for row in features])
    for num_rows in range(1, 76):
        assert torch.equal(model(features[:num_rows]), expected[:num_rows])
    assert torch.equal(model(features.view(3, 25, 64)), expected.view(3, 25, 7))
    if product is blocks_of_three_agree:
        assert [count for count in model[0].counts if count < 19] == [3, 4, 5, 6, 9, 10, 11, 12, 15, 16, 17, 18]


@needs_halves
def test_numbers_of_rows_that_do_not_agree_are_seen_where_nothing_limits_them(monkeypatch) -> None:
    """The mutant of the test above: without `counts` rows differ."""
    monkeypatch.setattr(HalfLinear, "_product", blocks_of_three_agree)
    model = nn.Sequential(nn.Linear(64, 48))
    pack_linears(model, HalfLinear)
    assert summation.row_window(model)[0] > 1
    features = summation._cancelling(9, 64, torch.float32, CPU, opposite=False)
    pack_linears(model, HalfLinear)
    assert not torch.equal(model(features)[:1], model(features[:1]))


@needs_halves
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_target_computes_what_the_rounded_model_computes(name: str) -> None:
    model, token_ids = tiny_model(name), random_ids(40)
    unrounded = plain_logits(model, token_ids)
    round_weights(model)
    want = plain_logits(model, token_ids)
    target = HFTarget(halved(name))
    assert target.has_halves and target.dtype == torch.float32
    target.prefill(0, token_ids[:13])
    found = score_one(target, 0, token_ids[13:])
    assert torch.allclose(found, want[13:], rtol=0, atol=1e-4)
    assert not torch.allclose(found, unrounded[13:], rtol=0, atol=1e-3)


@needs_halves
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_invariant_texts_are_those_without_speculation(name: str) -> None:
    target = HFTarget(halved(name), num_slots=2, invariant=True)
    prompts = [random_ids(12, seed=seed) for seed in range(4)]
    params = [
        SamplingParams(seed=seed, max_tokens=40, temperature=0.3 * seed, detokenize=False)
        for seed in range(len(prompts))
    ]
    config = {"method": "ngram", "num_speculative_tokens": 6, "draft_length": "fixed", "prompt_lookup_min": 1}
    texts = [
        [output.outputs[0].token_ids for output in LLM.from_target(target, None, **given).generate(prompts, params)]
        for given in ({}, {"speculative_config": config})
    ]
    assert texts[0] == texts[1] and all(len(ids) == 40 for ids in texts[0])


@pytest.mark.parametrize(
    ("flags", "asked", "format_"),
    [
        (X86, "auto", (torch.float32, True)),
        (X86, "float16", (torch.float32, True)),
        (X86, torch.float16, (torch.float32, True)),
        (X86, "float32", (torch.float32, False)),
        (X86, torch.float32, (torch.float32, False)),
        (X86, "bfloat16", (torch.bfloat16, False)),
        (X86 | {"avx512_bf16"}, "auto", (torch.bfloat16, False)),
        (X86 | {"avx512_bf16"}, "float16", (torch.float32, True)),
        (X86 - {"f16c"}, "auto", (torch.float32, False)),
        (X86 - {"f16c"}, "float16", (torch.float16, False)),
    ],
)
def test_what_is_kept_in_float16_is_a_rule_of_the_machine(monkeypatch, flags, asked, format_) -> None:
    monkeypatch.setattr(dtypes, "cpu_flags", lambda *_: flags)
    if flags >= X86 and not can_halve(CPU):
        pytest.skip("PyTorch has no product over float16 here")
    assert resolve_format(asked, CPU) == format_
    assert not can_halve(torch.device("cuda"))


@pytest.fixture
def without_bf16(monkeypatch):
    """A processor that multiplies no bfloat16."""
    found = dtypes.cpu_flags()
    monkeypatch.setattr(dtypes, "cpu_flags", lambda *_: found - dtypes.CPU_FLAGS)


@pytest.fixture
def folder(tmp_path):
    """A tiny model with a tokenizer of its size."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tiny_model("llama").save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({f"t{index}": index for index in range(VOCAB_SIZE)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="t0").save_pretrained(tmp_path)
    return tmp_path


@needs_halves
def test_auto_keeps_weights_in_float16_where_it_would_have_taken_float32(without_bf16, folder) -> None:
    found = {asked: load_target(str(folder), dtype=asked)[0] for asked in ("auto", "float16", "float32")}
    assert [target.has_halves for target in found.values()] == [True, True, False]
    assert {target.dtype for target in found.values()} == {torch.float32}
    assert not any(target.invariant for target in found.values())
    ids = random_ids(9)
    scored = {asked: score_one(target, 0, ids) for asked, target in found.items()}
    assert torch.equal(scored["auto"], scored["float16"]) and not torch.equal(scored["auto"], scored["float32"])


@needs_halves
def test_weights_beyond_the_range_of_float16(without_bf16, folder) -> None:
    """An error where float16 was asked for; `auto` computes in float32."""
    model = tiny_model("llama")
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        model.get_parameter(name)[3, 5] = -65536.0
    assert too_large(model) == name and too_large(tiny_model("llama")) is None
    model.save_pretrained(folder)
    with pytest.raises(ParameterError, match=f"float32: {name} holds numbers beyond the range of float16"):
        load_target(str(folder), dtype="float16")
    target, _ = load_target(str(folder))
    assert not target.has_halves and target.dtype == torch.float32
    assert torch.allclose(score_one(target, 0, random_ids(9)), plain_logits(model, random_ids(9)), rtol=1e-4, atol=1e-3)


@needs_halves
def test_drafters_of_such_a_target_keep_their_weights_so_too(without_bf16, folder) -> None:
    target, tokenizer = load_target(str(folder))
    config = SpeculativeConfig(method="draft_model", model=str(folder), num_speculative_tokens=3)
    drafter = make_drafter(config, target, tokenizer, SamplerChain())
    assert [part.has_halves for part in vars(drafter).values() if isinstance(part, HFTarget)] == [True]


def test_a_model_without_such_layers() -> None:
    assert not has_halves(tiny_model("llama"))
