"""The samplers beyond vLLM's: their formulas on rows small enough to work out by hand, and their edges."""

import math

import numpy as np
import pytest
import torch

from draftproof.core import Key, Noise, PointMass, Purpose
from draftproof.errors import LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import PRESETS, History, SamplerChain, resolve
from tests.sampling.rows import probs_of

QUARTERS = np.log([0.5, 0.25, 0.125, 0.125]).tolist()


class Coin(Noise):
    """A coin that falls or not, and remembers what it was asked."""

    def __init__(self, falls: bool) -> None:
        self.falls, self.asked = falls, []

    def coin(self, key: Key, numerator: float, denominator: float = 1) -> bool:
        self.asked.append((key, numerator))
        return self.falls


def under_coin(
    logits: list[float], *, falls: bool, output: tuple[int, ...] = (), preset: str = "vllm", **fields: object
) -> tuple[list[float], list[tuple[Key, float]]]:
    coin = Coin(falls)
    row = resolve(SamplingParams(**fields), None, len(logits))
    tensor = torch.tensor([logits], dtype=torch.float64)
    return SamplerChain(preset, "float64").probs(tensor, row, [History([0, 1], output)], noise=coin)[
        0
    ].tolist(), coin.asked


def test_typical_p_keeps_surprises_near_the_entropy() -> None:
    # Surprises 1 2 3 3 bits, entropy 1.75: distances .75 .25 1.25 1.25; the second token comes first.
    np.testing.assert_allclose(probs_of(QUARTERS, typical_p=0.2), [0, 1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(probs_of(QUARTERS, typical_p=0.6), [2 / 3, 1 / 3, 0, 0], atol=1e-12)
    # The last two are tied: one rule keeps both, the other the lower id.
    np.testing.assert_allclose(probs_of(QUARTERS, typical_p=0.8), [0.5, 0.25, 0.125, 0.125], atol=1e-12)
    np.testing.assert_allclose(probs_of(QUARTERS, typical_p=0.8, preset="llama.cpp")[3], 0.0)
    assert np.count_nonzero(probs_of(QUARTERS, typical_p=1e-9)) == 1


def test_typical_p_passes_over_masked_tokens() -> None:
    row = probs_of([*QUARTERS, 9.0], typical_p=0.6, logit_bias={4: -math.inf})
    np.testing.assert_allclose(row, [2 / 3, 1 / 3, 0, 0, 0], atol=1e-12)


def test_top_n_sigma_is_a_distance_in_logits_whatever_the_temperature() -> None:
    logits = [4.0, 2.0, 0.0, -2.0, -4.0]  # deviation sqrt(8)
    for temperature in (0.3, 1.0, 5.0):
        assert np.count_nonzero(probs_of(logits, top_n_sigma=0.8, temperature=temperature)) == 2
        assert np.count_nonzero(probs_of(logits, top_n_sigma=2.9, temperature=temperature)) == 5
    assert np.count_nonzero(probs_of(logits, top_n_sigma=-1)) == 5
    assert np.count_nonzero(probs_of([1.0, 1.0, 1.0], top_n_sigma=0.01)) == 3
    # A masked token counts in neither mean nor deviation.
    masked = probs_of([*logits, 100.0], top_n_sigma=0.8, logit_bias={5: -math.inf})
    assert np.count_nonzero(masked) == 2


def test_cutoffs_keep_what_reaches_them_and_the_largest() -> None:
    np.testing.assert_allclose(probs_of(QUARTERS, epsilon_cutoff=0.2), [2 / 3, 1 / 3, 0, 0], atol=1e-12)
    assert np.count_nonzero(probs_of(QUARTERS, epsilon_cutoff=0.99)) == 1
    assert np.count_nonzero(probs_of([1.0, 1.0, 0.0], epsilon_cutoff=0.99)) == 2
    # Entropy 1.75 bits: sqrt(.3) * 2^-1.75 = .163, less than .3, so eta drops .125 and keeps .25.
    np.testing.assert_allclose(probs_of(QUARTERS, eta_cutoff=0.3), [2 / 3, 1 / 3, 0, 0], atol=1e-12)
    assert np.count_nonzero(probs_of(QUARTERS, epsilon_cutoff=0.3)) == 1


def test_xtc_removes_the_top_choices_but_the_least_of_them() -> None:
    probs, asked = under_coin(QUARTERS, falls=True, output=(3,), xtc_probability=0.4, xtc_threshold=0.2)
    np.testing.assert_allclose(probs, [0, 0.5, 0.25, 0.25], atol=1e-12)
    assert asked == [(Key(Purpose.XTC, 3), 0.4)]
    probs, _ = under_coin(QUARTERS, falls=False, xtc_probability=0.4, xtc_threshold=0.2)
    np.testing.assert_allclose(probs, [0.5, 0.25, 0.125, 0.125], atol=1e-12)
    # Ties for the least: the highest id stays.
    probs, _ = under_coin(QUARTERS, falls=True, xtc_probability=0.4, xtc_threshold=0.1)
    assert probs == [0, 0, 0, 1]
    # One choice above the threshold, or none, and the coin isn't asked.
    for threshold in (0.3, 0.5):
        probs, asked = under_coin(QUARTERS, falls=True, xtc_probability=0.4, xtc_threshold=threshold)
        assert probs[0] == pytest.approx(0.5) and asked == []


def test_xtc_follows_the_keyed_coin_of_the_position_and_needs_one() -> None:
    row = resolve(SamplingParams(xtc_probability=0.5, xtc_threshold=0.2), None, 4)
    logits = torch.tensor([QUARTERS] * 40)
    histories = [History([0] * (1 + i)) for i in range(40)]
    noise = KeyedNoise(7)
    laws = SamplerChain().laws(logits, row, histories, noise=noise)
    fell = [law.prob(0) == 0 for law in laws]
    assert fell == [noise.coin(Key(Purpose.XTC, 1 + i), 0.5) for i in range(40)] and 5 < sum(fell) < 35
    with pytest.raises(ParameterError, match="noise=None.*xtc_probability"):
        SamplerChain().laws(logits, row, histories)
    with pytest.raises(ParameterError, match="noise"):
        SamplerChain().laws(logits, row, histories, noise=[noise])


def test_dynamic_temperature_follows_the_entropy() -> None:
    # Entropy 1.75 of at most 2 bits: T = .5 + 1 * .875.
    row = np.log(probs_of(QUARTERS, dynatemp_range=0.5))
    assert (row[0] - row[1]) / math.log(2) == pytest.approx(1 / 1.375)
    row = np.log(probs_of(QUARTERS, dynatemp_range=0.5, dynatemp_exponent=2.0))
    assert (row[0] - row[1]) / math.log(2) == pytest.approx(1 / (0.5 + 0.875**2))
    # A uniform row has the highest temperature, and one token left is certain at any.
    assert probs_of([1.0] * 4, dynatemp_range=0.5) == pytest.approx([0.25] * 4)
    assert probs_of(QUARTERS, dynatemp_range=0.5, allowed_token_ids=[2]) == [0, 0, 1, 0]
    # Range above temperature and no entropy: the temperature is 0.
    assert probs_of([800.0, 0.0, 0.0], dynatemp_range=2.0) == [1, 0, 0]


def test_no_repeat_ngram_looks_at_prompt_and_output() -> None:
    seen = {"prompt": [1, 2], "output": [3, 1]}
    twos = probs_of([0.0] * 6, no_repeat_ngram_size=2, **seen)
    assert [i for i, prob in enumerate(twos) if prob == 0] == [2]
    ones = probs_of([0.0] * 6, no_repeat_ngram_size=1, **seen)
    assert ones == pytest.approx([1 / 3, 0, 0, 0, 1 / 3, 1 / 3])
    assert 0 not in probs_of([0.0] * 6, prompt=[1], output=[1], no_repeat_ngram_size=3)
    with pytest.raises(LawError, match="every token is masked"):
        probs_of([0.0, 0.0], prompt=[0, 1], no_repeat_ngram_size=1)


@pytest.mark.parametrize("preset", list(PRESETS))
def test_temperature_zero_is_the_largest_logit_with_every_sampler_that_allows_it(preset: str) -> None:
    fields = [
        {"top_n_sigma": 0.5},
        {"epsilon_cutoff": 0.3},
        {"eta_cutoff": 0.3},
        {"mirostat": 1},
        {"mirostat": 2},
        {"no_repeat_ngram_size": 3},
    ]
    for own in fields:
        row = resolve(SamplingParams(temperature=0.0, **own), None, 4)
        if not PRESETS[preset].refused.keys() & own.keys():
            assert SamplerChain(preset).laws(torch.tensor([QUARTERS]), row, [row.first_history([0])]) == [PointMass(0)]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": 0, "typical_p": 0.5}, "typical_p"),
        ({"temperature": 0, "xtc_probability": 0.5}, "xtc_probability"),
        ({"temperature": 0, "dynatemp_range": 0.5}, "dynatemp_range"),
        ({"mirostat": 1, "top_k": 5}, "top_k"),
        ({"mirostat": 2, "top_p": 0.5}, "top_p"),
        ({"mirostat": 2, "min_p": 0.5}, "min_p"),
        ({"mirostat": 2, "dynatemp_range": 0.5}, "dynatemp_range"),
        ({"mirostat": 2, "xtc_probability": 0.5}, "xtc_probability"),
        ({"mirostat": 3}, "mirostat"),
        ({"mirostat_tau": 0}, "mirostat_tau"),
        ({"mirostat_eta": -0.1}, "mirostat_eta"),
        ({"typical_p": 0}, "typical_p"),
        ({"typical_p": 1.1}, "typical_p"),
        ({"top_n_sigma": -2}, "top_n_sigma"),
        ({"top_n_sigma": math.nan}, "top_n_sigma"),
        ({"epsilon_cutoff": 1}, "epsilon_cutoff"),
        ({"eta_cutoff": -0.1}, "eta_cutoff"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_base": 0.9}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["x" * 41]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"dynatemp_range": -1}, "dynatemp_range"),
        ({"dynatemp_exponent": -1}, "dynatemp_exponent"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size"),
        ({"logits_processors": "print"}, "logits_processors"),
        ({"logits_processors": [3]}, "logits_processors"),
    ],
    ids=str,
)
def test_bad_values_and_pairs_are_refused(fields: dict, name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**fields)
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier"])
def test_llama_cpp_refuses_with_mirostat_what_it_would_pass_over(name: str) -> None:
    params = SamplingParams(mirostat=2, dry_sequence_breakers=[], **{name: 1.5})
    with pytest.raises(ParameterError, match=f"{name}=.*with mirostat under the preset 'llama.cpp'"):
        SamplerChain("llama.cpp").resolve(params, None, 4)
    SamplerChain("vllm").resolve(params, None, 4)
