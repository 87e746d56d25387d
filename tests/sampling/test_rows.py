"""A row's law is the same bits alone and in any batch, whatever its neighbours hold, and keeps its shape rules."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core import Dense, PointMass, Sparse
from draftproof.errors import LawError, ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import PRESETS, History, SamplerChain, resolve
from draftproof.sampling.temperature import weights_of
from tests.sampling.rows import block, same_bits

SETTINGS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_p": 0.95},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"temperature": 1e-3, "top_k": 400, "min_p": 0.01},
    {"logit_bias": {1: 5.0}},
    {"typical_p": 0.9, "temperature": 0.8},
    {"top_n_sigma": 1.5},
    {"eta_cutoff": 0.01, "epsilon_cutoff": 1e-4},
    {"dynatemp_range": 0.4, "temperature": 0.9},
    {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": (), "top_p": 0.9},
    {"no_repeat_ngram_size": 2, "min_p": 0.05},
]


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_batch_gives_the_bits_of_single_rows(preset: str, dtype: torch.dtype) -> None:
    size = 5003  # odd: rows of a batch start at every alignment
    chain = SamplerChain(preset, "float64" if dtype == torch.float64 else "float32")
    own = [fields for fields in SETTINGS if not chain.preset.refused.keys() & fields.keys()]
    params = [resolve(SamplingParams(**fields), None, size) for fields in own]
    logits = (3 * torch.randn(len(params), size, generator=torch.Generator().manual_seed(1))).to(dtype)
    histories = block([1, 2], [3], list(range(4, 3 + len(params))))
    together = chain.laws(logits, params, histories)
    for i in range(len(params)):
        alone = chain.laws(logits[i : i + 1].clone(), params[i], histories[i : i + 1])[0]
        assert same_bits(together[i], alone), own[i]
        pair = chain.laws(logits[[i, 0]], [params[i], params[0]], [histories[i], histories[0]])[0]
        assert same_bits(together[i], pair), own[i]


@given(order=st.permutations(range(6)), num_threads=st.sampled_from([1, 2]))
@settings(max_examples=20)
def test_neither_order_nor_threads_change_a_bit(order: list[int], num_threads: int) -> None:
    size = 4099
    logits = 2 * torch.randn(6, size, generator=torch.Generator().manual_seed(2))
    row, histories = resolve(SamplingParams(top_p=0.9), None, size), [History([i]) for i in range(6)]
    before = torch.get_num_threads()
    straight = SamplerChain().laws(logits, row, histories)
    try:
        torch.set_num_threads(num_threads)
        mixed = SamplerChain().laws(logits[order], row, [histories[i] for i in order])
    finally:
        torch.set_num_threads(before)
    assert all(same_bits(straight[i], law) for i, law in zip(order, mixed, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_gives_the_same_bits_at_every_place(dtype: type) -> None:
    for score in (-0.1, -1.2345, -33.3, -90.0):
        whole = np.full(1037, score, dtype=dtype)
        assert len(np.unique(np.concatenate([weights_of(whole[start:]) for start in range(9)]))) == 1


def test_histories_share_logits_but_not_penalties() -> None:
    rows = block([1], [], [2, 2])
    row = resolve(SamplingParams(frequency_penalty=1.0), None, 4)
    table = SamplerChain(dtype="float64").probs(torch.zeros(3, 4), row, rows).numpy()
    np.testing.assert_allclose(np.log(table[:, 0] / table[:, 2]), [0.0, 1.0, 2.0], atol=1e-12)


@pytest.mark.parametrize(("num_kept", "kind"), [(1, PointMass), (2, Sparse), (10, Sparse), (11, Dense), (79, Dense)])
def test_the_kind_of_law_follows_the_support(num_kept: int, kind: type) -> None:
    logits = torch.linspace(4, 0, 80).unsqueeze(0)
    for fields in ({"top_k": num_kept}, {"allowed_token_ids": list(range(num_kept))}):
        law = SamplerChain().laws(logits, resolve(SamplingParams(**fields), None, 80), [History([1])])[0]
        assert type(law) is kind
        assert np.count_nonzero(law.at(None, 80)) == num_kept


def test_probs_has_the_type_asked_for_and_sums_to_one() -> None:
    logits = 4 * torch.randn(4, 49152, generator=torch.Generator().manual_seed(3))
    params = [resolve(SamplingParams(**fields), None, 49152) for fields in SETTINGS[1:5]]
    histories = [History([1])] * 4
    for dtype, kind, slack in (("float32", torch.float32, 5e-7), ("float64", torch.float64, 1e-13)):
        probs = SamplerChain(dtype=dtype).probs(logits, params, histories)
        assert probs.dtype is kind and probs.device == logits.device
        # Pairwise sums over 49,152 terms: at most log2(49152) + 8 roundings of half a unit each.
        assert (probs.double().sum(dim=1) - 1).abs().max() < slack * 4
    assert (probs[2] == 0).sum() > 40_000, "filtered tokens are exactly 0"


def test_bad_rows_are_named_and_fail_alone() -> None:
    good = [0.0, 1.0, 2.0]
    rows = [good, [0.0, float("nan"), 1.0], [0.0, float("inf"), 1.0], [-float("inf")] * 3, [-float("inf"), 0.0, 1.0]]
    row, histories = resolve(SamplingParams(), None, 3), [History([1])] * 5
    laws = SamplerChain().laws(torch.tensor(rows), row, histories, errors="return")
    assert [isinstance(law, LawError) for law in laws] == [False, True, True, True, False]
    assert "row 1 of 5: NaN" in str(laws[1]) and "row 2 of 5: an infinite" in str(laws[2])
    assert "row 3 of 5: every token" in str(laws[3])
    assert same_bits(laws[0], SamplerChain().laws(torch.tensor([good]), row, histories[:1])[0])  # type: ignore[arg-type]
    with pytest.raises(LawError, match="row 1 of 5"):
        SamplerChain().laws(torch.tensor(rows), row, histories)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_under_a_mask_is_still_an_error(temperature: float) -> None:
    row = resolve(SamplingParams(temperature=temperature, allowed_token_ids=[0, 2]), None, 3)
    with pytest.raises(LawError, match="NaN"):
        SamplerChain().laws(torch.tensor([[0.0, float("nan"), 1.0]]), row, [History([1])])


def test_a_penalty_that_overflows_is_an_error_and_not_a_law() -> None:
    row = resolve(SamplingParams(repetition_penalty=1e-40), None, 3)
    with pytest.raises(LawError, match="infinite logit after masks and penalties"):
        SamplerChain().laws(torch.tensor([[1.0, 2.0, 0.5]]), row, [History([1])])


def test_shapes_and_types_that_do_not_fit_are_refused() -> None:
    chain, row = SamplerChain(), resolve(SamplingParams(), None, 4)
    with pytest.raises(ParameterError, match="logits"):
        chain.laws(torch.zeros(4), row, [History([1])])
    with pytest.raises(ParameterError, match="logits"):
        chain.laws(torch.zeros(1, 4, dtype=torch.int64), row, [History([1])])
    with pytest.raises(ParameterError, match="vocab_size=4"):
        chain.laws(torch.zeros(1, 3), row, [History([1])])
    with pytest.raises(ParameterError, match="rows"):
        chain.laws(torch.zeros(2, 4), row, [History([1])])
    with pytest.raises(ParameterError, match="errors"):
        chain.laws(torch.zeros(1, 4), row, [History([1])], errors="ignore")  # type: ignore[call-overload]
    with pytest.raises(ParameterError, match="vocab_size"):
        chain.probs(torch.zeros(2, 4), [row, resolve(SamplingParams(), None, 3)], [History([1])] * 2)


@pytest.mark.gpu
def test_logits_on_a_gpu_give_the_bits_of_the_cpu() -> None:
    logits = torch.randn(3, 1001, generator=torch.Generator().manual_seed(4)).bfloat16()
    row, histories = resolve(SamplingParams(top_p=0.9), None, 1001), block([1], [], [2, 3])
    here, there = SamplerChain().laws(logits, row, histories), SamplerChain().laws(logits.cuda(), row, histories)
    assert all(map(same_bits, here, there))
    assert SamplerChain().probs(logits.cuda(), row, histories).is_cuda
