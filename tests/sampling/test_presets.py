"""The preset `hf` against transformers' own processors, the others against their engines' documented formulas."""

import math

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from draftproof.core import Dense, PointMass
from draftproof.errors import ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import PRESETS, History, SamplerChain, resolve
from tests.sampling.rows import probs_of

SIZE = 500
CASES = [
    {"temperature": 0.7},
    {"repetition_penalty": 1.3},
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 0.9},
    {"temperature": 0.4, "top_p": 0.95, "repetition_penalty": 1.2, "min_tokens": 9, "logit_bias": {3: 2.0, 7: -1.5}},
    {"typical_p": 0.2},
    {"typical_p": 0.95, "temperature": 1.3},
    {"epsilon_cutoff": 0.01},
    {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.002},
    {"eta_cutoff": 0.3, "temperature": 2.0},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "repetition_penalty": 1.2},
    {"no_repeat_ngram_size": 30},
    {"temperature": 1.4, "top_k": 60, "top_p": 0.97, "min_p": 0.001, "typical_p": 0.8, "epsilon_cutoff": 0.01,
     "eta_cutoff": 0.02, "no_repeat_ngram_size": 2, "repetition_penalty": 1.1},
]  # fmt: skip


BEYOND = [
    {"typical_p": 0.5},
    {"top_n_sigma": 1.0},
    {"epsilon_cutoff": 0.1},
    {"eta_cutoff": 0.1},
    {"xtc_probability": 0.5},
    {"dry_multiplier": 1.0, "dry_sequence_breakers": ()},
    {"mirostat": 1},
    {"dynatemp_range": 0.5},
    {"no_repeat_ngram_size": 2},
]
"""Samplers beyond vLLM's."""
LACKS = {
    "hf": {"top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat", "dynatemp_range"},
    "llama.cpp": {"epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size"},
    "mlx": {next(iter(fields)) for fields in BEYOND} - {"xtc_probability"},
}
"""Which of them each engine doesn't have."""


def by_transformers(
    logits: torch.Tensor, fields: dict, prompt: list[int], output: list[int], bad_words: list[list[int]], eos: list[int]
) -> np.ndarray:
    """The law that generate(do_sample=True) would draw from, in the order of transformers' `_get_logits_processor`."""
    processors = LogitsProcessorList()
    if "logit_bias" in fields:
        processors.append(SequenceBiasLogitsProcessor({(i,): bias for i, bias in fields["logit_bias"].items()}))
    if "repetition_penalty" in fields:
        processors.append(RepetitionPenaltyLogitsProcessor(fields["repetition_penalty"]))
    if "no_repeat_ngram_size" in fields:
        processors.append(NoRepeatNGramLogitsProcessor(fields["no_repeat_ngram_size"]))
    if bad_words:
        processors.append(NoBadWordsLogitsProcessor(bad_words, eos))
    if "min_tokens" in fields:
        processors.append(MinNewTokensLengthLogitsProcessor(len(prompt), fields["min_tokens"], eos))
    if "temperature" in fields:
        processors.append(TemperatureLogitsWarper(fields["temperature"]))
    if "top_k" in fields:
        processors.append(TopKLogitsWarper(fields["top_k"]))
    if "top_p" in fields:
        processors.append(TopPLogitsWarper(fields["top_p"]))
    if "min_p" in fields:
        processors.append(MinPLogitsWarper(fields["min_p"]))
    if "typical_p" in fields:
        processors.append(TypicalLogitsWarper(fields["typical_p"]))
    if "epsilon_cutoff" in fields:
        processors.append(EpsilonLogitsWarper(fields["epsilon_cutoff"]))
    if "eta_cutoff" in fields:
        processors.append(EtaLogitsWarper(fields["eta_cutoff"]))
    return torch.softmax(processors(torch.tensor([prompt + output]), logits.clone()), dim=-1)[0].numpy()


@pytest.mark.parametrize("fields", CASES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_hf_equals_transformers(fields: dict, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(1, SIZE, generator=generator, dtype=torch.float64)
    prompt, output = [1, 2, 3, 40, 40], [5, 6, 7, 3]
    bad_words, eos = [[11], [7, 3, 12], [40, 5, 6, 7, 3, 13], [3, 40, 14]], [8, 9]
    row = resolve(SamplingParams(**fields), None, SIZE, eos, bad_word_ids=bad_words)
    ours = SamplerChain("hf", "float64").probs(logits, row, [History(prompt, output)])[0].numpy()
    theirs = by_transformers(logits, fields, prompt, output, bad_words, eos)
    assert np.array_equal(ours > 0, theirs > 0)
    # transformers holds sequence_bias in float32, which has 2.0 and -1.5 exactly.
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=0)


def test_hf_keeps_ties_at_k_and_drops_the_lower_id_at_the_nucleus_edge() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    theirs = by_transformers(logits, {"top_k": 2}, [], [0], [], [])
    np.testing.assert_allclose(probs_of([1.0, 1.0, 1.0, 0.0], top_k=2, preset="hf"), theirs, rtol=1e-12)
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    theirs = by_transformers(logits, {"top_p": 0.4}, [], [0], [], [])
    np.testing.assert_allclose(probs_of([0.0] * 4, top_p=0.4, preset="hf"), theirs, rtol=1e-12)
    assert theirs.tolist() == [0.0, 0.0, 0.5, 0.5]


def test_llama_cpp_filters_at_temperature_one_and_divides_last() -> None:
    # top_k 4 leaves .4 .3 .2 .05; their mass is .95, so top_p .9 needs .855: three tokens; T = .5 squares them.
    logits = np.log([0.4, 0.3, 0.2, 0.05, 0.03, 0.02]).tolist()
    row = probs_of(logits, preset="llama.cpp", top_k=4, top_p=0.9, temperature=0.5)
    np.testing.assert_allclose(row, np.array([0.16, 0.09, 0.04, 0, 0, 0]) / 0.29, rtol=1e-12)
    # vLLM filters the squared law: .16 and .09 of .2925 are .855, so that two would do for .85.
    assert np.count_nonzero(probs_of(logits, preset="vllm", top_k=4, top_p=0.85, temperature=0.5)) == 2
    assert np.count_nonzero(probs_of(logits, preset="llama.cpp", top_k=4, top_p=0.85, temperature=0.5)) == 3


def test_llama_cpp_min_p_is_a_logit_threshold_at_temperature_one() -> None:
    logits = [3.0, 2.0, 1.0, 0.0]
    share = math.exp(-1.5)
    row = probs_of(logits, preset="llama.cpp", min_p=share, temperature=4.0)
    np.testing.assert_allclose(row[0] / row[1], math.exp(0.25), rtol=1e-12)
    assert row[2:] == [0.0, 0.0]
    assert np.count_nonzero(probs_of(logits, preset="vllm", min_p=share, temperature=4.0)) == 4


@pytest.mark.parametrize(("preset", "window"), [("llama.cpp", 64), ("mlx", 20)])
def test_windowed_penalties_forget(preset: str, window: int) -> None:
    fields = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 0.25}
    logits = [2.0, -1.0, 0.5, 0.0]
    recent = [3] * (window - 3) + [0, 0, 1]
    for prompt, output in (([2, *recent[:5]], recent[5:]), ([2], recent), ([2, 2, *recent], [])):
        row = np.log(probs_of(logits, prompt=prompt, output=output, preset=preset, **fields))
        wanted = [2.0 / 2 - 2 * 0.5 - 0.25, -1.0 * 2 - 0.5 - 0.25, 0.5, 0.0 - (window - 3) * 0.5 - 0.25]
        np.testing.assert_allclose(row - row[2], np.array(wanted) - 0.5, atol=1e-12)


def test_the_window_can_be_set_where_the_engine_has_one() -> None:
    logits, row = torch.zeros(1, 3, dtype=torch.float64), resolve(SamplingParams(frequency_penalty=1.0), None, 3)
    for window, counts in ((1, [0, 0, 1]), (2, [0, 1, 1]), (None, [2, 1, 1])):
        probs = SamplerChain("mlx", "float64", penalty_window=window).probs(logits, row, [History([0, 0], [1, 2])])[0]
        np.testing.assert_allclose(np.diff(np.log(probs.numpy())), -np.diff(counts), atol=1e-12)
    with pytest.raises(ParameterError, match="penalty_window"):
        SamplerChain("vllm", penalty_window=3)
    for bad in (0, -1, True, "all", 2.0):
        with pytest.raises(ParameterError, match="penalty_window"):
            SamplerChain("llama.cpp", penalty_window=bad)  # type: ignore[arg-type]


def test_mlx_order_top_p_then_min_p_then_exactly_k_then_temperature() -> None:
    probs = [0.3, 0.25, 0.25, 0.1, 0.06, 0.04]
    logits = np.log(probs).tolist()
    # Ascending masses .04 .1 .2 .45 .7 1: top_p .85 drops what is at most .15, and top_k 2 the higher id of the tie.
    row = probs_of(logits, preset="mlx", top_p=0.85, top_k=2, temperature=0.5)
    np.testing.assert_allclose(row, np.array([0.09, 0.0625, 0, 0, 0, 0]) / 0.1525, rtol=1e-12)
    assert np.count_nonzero(probs_of(logits, preset="mlx", top_p=0.85)) == 4
    assert np.count_nonzero(probs_of(logits, preset="mlx", top_p=0.85, min_p=0.5)) == 3


def test_mlx_xtc_comes_between_min_p_and_top_k_and_keeps_ties_with_the_least() -> None:
    """mlx-lm's rule: what is above the least probability above the threshold goes; ties with it stay."""

    def removed(probs: list[float], threshold: float, **fields: object) -> list[float]:
        row = resolve(SamplingParams(xtc_probability=1.0, xtc_threshold=threshold, **fields), None, len(probs))
        logits = torch.tensor([probs], dtype=torch.float64).log()
        return SamplerChain("mlx", "float64").probs(logits, row, [History([0])], noise=KeyedNoise(1))[0].tolist()

    np.testing.assert_allclose(removed([0.4, 0.25, 0.25, 0.1], 0.2), [0, 0.25 / 0.6, 0.25 / 0.6, 0.1 / 0.6], rtol=1e-9)
    # A token at the threshold is none of the choices (binary fractions, so that "at" is exact).
    np.testing.assert_allclose(removed([0.5, 0.25, 0.25], 0.25), [0.5, 0.25, 0.25], rtol=1e-9)
    # min_p leaves .4 .3 .2 of .9, of which XTC leaves .2; top_k then has one token to choose from.
    assert removed([0.4, 0.3, 0.2, 0.1], 0.2, min_p=0.5, top_k=2) == [0, 0, 1, 0]
    # top_k before XTC would have left .4 .3, and XTC .3.


def test_vllm_frequency_and_presence_leave_the_prompt_alone_and_repetition_does_not() -> None:
    logits = [1.0, 1.0, 1.0, 1.0]
    row = np.log(probs_of(logits, prompt=[0, 1], output=[1, 2], frequency_penalty=0.5, presence_penalty=0.25))
    np.testing.assert_allclose(row - row[3], [0.0, -0.75, -0.75, 0.0], atol=1e-12)
    row = np.log(probs_of(logits, prompt=[0, 1], output=[1, 2], repetition_penalty=2.0))
    np.testing.assert_allclose(row - row[3], [-0.5, -0.5, -0.5, 0.0], atol=1e-12)


def test_vllm_bias_comes_before_penalties() -> None:
    row = np.log(probs_of([1.0, 0.0], output=[0], repetition_penalty=2.0, logit_bias={0: 3.0}))
    assert row[0] - row[1] == pytest.approx((1.0 + 3.0) / 2)


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        ("hf", {"presence_penalty": 0.5}),
        ("hf", {"frequency_penalty": 0.5}),
        ("llama.cpp", {"allowed_token_ids": [1]}),
        ("llama.cpp", {"min_tokens": 1}),
        ("mlx", {"allowed_token_ids": [1]}),
        ("mlx", {"min_tokens": 1}),
        *[(preset, fields) for preset, lacks in LACKS.items() for fields in BEYOND if lacks & fields.keys()],
    ],
)
def test_what_an_engine_does_not_have_is_refused(preset: str, fields: dict) -> None:
    name = next(iter(fields))
    params = SamplingParams(**fields)
    with pytest.raises(ParameterError, match=f"{name}=.*under the preset '{preset}'"):
        SamplerChain(preset).resolve(params, None, 4)
    with pytest.raises(ParameterError, match=name):
        SamplerChain(preset).laws(torch.zeros(1, 4), resolve(params, None, 4), [History([1])])
    row = resolve(params, None, 4)
    [law] = SamplerChain("vllm").laws(torch.zeros(1, 4), row, [row.first_history([1])], noise=KeyedNoise(1))
    assert isinstance(law, (Dense, PointMass))


@pytest.mark.parametrize("preset", ["llama.cpp", "mlx"])
def test_bad_words_are_refused_where_the_engine_has_none(preset: str) -> None:
    row = resolve(SamplingParams(), None, 4, bad_word_ids=[[1, 2]])
    with pytest.raises(ParameterError, match="bad_words=\\[\\[1, 2\\]\\]"):
        SamplerChain(preset).laws(torch.zeros(1, 4), row, [History([1])])


def test_a_bad_word_that_begins_in_the_prompt_is_banned_by_transformers_alone() -> None:
    for prompt, output, banned in (([4], [], {"vllm": False, "hf": True}), ([1], [4], {"vllm": True, "hf": True})):
        for preset, is_banned in banned.items():
            row = probs_of([0.0] * 10, prompt=prompt, output=output, preset=preset, bad_word_ids=[[4, 9]])
            assert (row[9] == 0.0) is is_banned


def test_hf_refuses_a_bad_word_that_transformers_would_drop() -> None:
    row = resolve(SamplingParams(), None, 4, [3], bad_word_ids=[[3]])
    with pytest.raises(ParameterError, match="no EOS id alone"):
        SamplerChain("hf").laws(torch.zeros(1, 4), row, [History([1])])


@pytest.mark.parametrize("preset", list(PRESETS))
def test_a_chain_prints_itself(preset: str) -> None:
    chain = SamplerChain(preset, "float64")
    lines = str(chain).splitlines()
    assert chain.describe() == str(chain) and preset in lines[0]
    order = PRESETS[preset].order
    for number, step in enumerate(order, 1):
        assert (
            lines[number].startswith(f"  {number}. {step.name.lower().split('_')[0][:4]}")
            or step.value in lines[number]
        )
    text = str(chain)
    assert PRESETS[preset].top_k_ties.value in text and PRESETS[preset].top_p_ties.value in text
    assert "float64" in lines[-1] and "defaults" in text and "refused:" in text
    assert all(name in text for name in (*PRESETS[preset].refused, *PRESETS[preset].refused_with_mirostat))


def test_unknown_presets_and_types_are_refused() -> None:
    with pytest.raises(ParameterError, match="preset='sglang': must be one of vllm, hf, llama.cpp, mlx"):
        SamplerChain("sglang")
    with pytest.raises(ParameterError, match="dtype='bfloat16'"):
        SamplerChain(dtype="bfloat16")
