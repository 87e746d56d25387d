"""T21 to T35: public bugs of sampler chains under speculation. The right values are required; wrong ones are named.

T24, T33 and T35 are tested here at the level of the chain; the engine's tests have them end to end.
Probabilities are given to four places, so a value agrees within 6e-5.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from draftproof.core import Dense, Draft, PointMass
from draftproof.errors import LawError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import PRESETS, History, SamplerChain, laws_along, resolve
from draftproof.verify import get_verifier
from tests.sampling.rows import block, law_of, probs_of, same_bits

FOUR_PLACES = 6e-5
LOGITS = [2.0, 1.0, 0.5, -0.5]


def table(
    logits: list[float], histories: list[History], *, eos: tuple[int, ...] = (), **arguments: object
) -> np.ndarray:
    """[rows, V] probabilities, the same logits in every row, float64."""
    bad_word_ids = arguments.pop("bad_word_ids", None)
    row = resolve(SamplingParams(**arguments), None, len(logits), eos, bad_word_ids=bad_word_ids)
    rows = torch.tensor([logits] * len(histories), dtype=torch.float64)
    return SamplerChain(dtype="float64").probs(rows, row, histories).numpy()


def test_t21_penalties_apply_on_every_row() -> None:
    rows = table(LOGITS, block([], [], [0, 3]), repetition_penalty=1.2)
    wanted = [
        [0.5977, 0.2199, 0.1334, 0.0491],
        [0.5156, 0.2647, 0.1606, 0.0591],
        [0.5185, 0.2662, 0.1615, 0.0538],
    ]
    np.testing.assert_allclose(rows, wanted, atol=FOUR_PLACES)


def test_t21_negative_logits_multiply() -> None:
    # Row 2 of T21 is the softmax of [1.6667, 1, .5, -.6]; dividing -.5 would make token 3 more likely.
    weights = [math.exp(z) for z in (2 / 1.2, 1.0, 0.5, -0.5 * 1.2)]
    row = table(LOGITS, [History([], [0, 3])], repetition_penalty=1.2)[0]
    np.testing.assert_allclose(row, [w / sum(weights) for w in weights], rtol=1e-12)


def test_t22_counts_inside_the_block() -> None:
    rows = table(LOGITS, block([], [], [1, 1, 1]), frequency_penalty=0.5, presence_penalty=0.3)
    np.testing.assert_allclose(rows[:, 1], [0.2199, 0.1124, 0.0713, 0.0445], atol=FOUR_PLACES)


def test_t22_joint_law_of_two_tokens() -> None:
    rows = table([1.0, 1.0, 0.0], block([], [], [0]), frequency_penalty=1.0)
    assert rows[0, 0] * rows[1, 0] == pytest.approx(0.0895, abs=FOUR_PLACES)
    assert rows[0, 0] ** 2 == pytest.approx(0.1783, abs=FOUR_PLACES), "what broadcast state gives"


def test_t23_state_after_a_run_of_several_tokens() -> None:
    logits = [0.0] * 8
    row = table(logits, [History([1, 2]).extended([5, 5, 5])], frequency_penalty=0.5)[0]
    assert math.log(row[0] / row[5]) == pytest.approx(1.5)


def test_t23_min_tokens_counts_tokens_and_not_rounds() -> None:
    history = History([1])
    masked = []
    for _ in range(3):
        masked.append(table(LOGITS, [history], min_tokens=8, max_tokens=20, eos=(2,))[0, 2] == 0.0)
        history = history.extended([0, 1, 0, 3])
    assert masked == [True, True, False]


def test_t24_placeholders_are_refused_and_never_index_the_vocabulary() -> None:
    with pytest.raises(ParameterError, match="output_ids=-1"):
        History([1], [7, -1, -1])
    with pytest.raises(ParameterError, match="token_ids=-1"):
        History([1], [7]).extended([9, -1])
    with pytest.raises(ParameterError, match="prompt_ids=-1"):
        History([-1, 4])


def test_t24_penalties_see_the_real_values_in_a_mixed_batch() -> None:
    logits = torch.zeros(2, 10, dtype=torch.float64)
    penalized = resolve(SamplingParams(frequency_penalty=1.0), None, 10)
    plain = resolve(SamplingParams(), None, 10)
    rows = SamplerChain(dtype="float64").probs(logits, [plain, penalized], [History([3], [7, 9, 9])] * 2).numpy()
    np.testing.assert_allclose(rows[0], 0.1)
    assert math.log(rows[1, 0] / rows[1, 9]) == pytest.approx(2.0)
    assert math.log(rows[1, 0] / rows[1, 7]) == pytest.approx(1.0)
    assert rows[1, 3] == rows[1, 0], "a prompt's token has no frequency penalty"


def test_t25_min_p_filters_every_row_and_the_bonus_row() -> None:
    rows = table(np.log([0.5, 0.3, 0.15, 0.05]).tolist(), block([], [], [0, 1, 2]), min_p=0.2)
    np.testing.assert_allclose(rows, [[0.5263, 0.3158, 0.1579, 0.0]] * 4, atol=FOUR_PLACES)
    assert (rows[:, 3] == 0.0).all()


def test_t26_logit_bias_reaches_every_row() -> None:
    rows = table(LOGITS, block([], [], [0, 2, 1]), logit_bias={2: -100.0})
    assert (rows[:, 2] < 1e-40).all() and (rows[:, 2] > 0).all()
    banned = table(LOGITS, block([], [], [0, 2, 1]), logit_bias={2: -math.inf})
    assert (banned[:, 2] == 0.0).all()


def test_t27_min_tokens_row_by_row() -> None:
    # 3 committed of 5: rows 0 and 1 would be tokens 4 and 5. An off-by-one masks row 2.
    rows = table(LOGITS + [0.0], block([9], [0, 0, 0], [0, 0, 0]), min_tokens=5, eos=(2, 4), stop_token_ids=[3])
    for ending in (2, 3, 4):
        assert [p == 0.0 for p in rows[:, ending]] == [True, True, False, False]


def test_t28_bad_words_row_by_row() -> None:
    rows = table([0.0] * 10, block([], [2], [4, 9, 4]), bad_word_ids=[[4, 9]])
    assert [p == 0.0 for p in rows[:, 9]] == [False, True, False, True]
    assert (np.delete(rows, 9, axis=1) > 0).all(), "an innocent token or row is banned"


def test_t28_bad_words_of_the_right_request() -> None:
    plain, strict = resolve(SamplingParams(), None, 10), resolve(SamplingParams(), None, 10, bad_word_ids=[[4, 9]])
    histories = block([], [2], [4, 9]) + block([], [4], [4])
    rows = SamplerChain().probs(torch.zeros(5, 10), [plain] * 3 + [strict] * 2, histories).numpy()
    assert [p == 0.0 for p in rows[:, 9]] == [False, False, False, True, True]


def test_t29_contradictory_masks_are_refused_at_admission() -> None:
    with pytest.raises(ParameterError, match="leave at least one token"):
        resolve(SamplingParams(allowed_token_ids=[3, 5]), None, 8, bad_word_ids=[[3], [5]])
    with pytest.raises(ParameterError, match="leave at least one token"):
        resolve(SamplingParams(logit_bias={i: -math.inf for i in range(4)}), None, 4)
    with pytest.raises(ParameterError, match="min_tokens"):
        resolve(SamplingParams(allowed_token_ids=[3], min_tokens=1), None, 8, [3])


def test_t29_masks_that_only_the_history_contradicts_fail_their_row_alone() -> None:
    row = resolve(SamplingParams(allowed_token_ids=[3, 5]), None, 8, bad_word_ids=[[3], [5, 5]])
    logits, histories = torch.zeros(2, 8), block([], [], [5])
    first, second = SamplerChain().laws(logits, row, histories, errors="return")
    assert first == PointMass(5)
    assert isinstance(second, LawError) and "row 1" in str(second) and "masked" in str(second)
    assert "request r7, position 12" in str(second.at("r7", 12))
    with pytest.raises(LawError, match="row 1 of 2: every token is masked"):
        SamplerChain().laws(logits, row, histories)


def test_t30_top_k_then_top_p_on_the_renormalised_survivors() -> None:
    probs = [0.35, 0.25, 0.20, 0.05] + [0.03] * 5
    row = probs_of(np.log(probs).tolist(), top_k=4, top_p=0.82)
    np.testing.assert_allclose(row, [0.4375, 0.3125, 0.25, 0.0] + [0.0] * 5, atol=1e-9)
    joint = [0.4118, 0.2941, 0.2353, 0.0588]
    assert not np.allclose(row[:4], joint, atol=0.01)


@pytest.mark.parametrize("top_k", [0, -1, 4, 5, 10**9])
def test_t31_top_k_off_or_beyond_the_vocabulary_keeps_all(top_k: int) -> None:
    assert probs_of(LOGITS, top_k=top_k) == probs_of(LOGITS)


def test_t31_ties_at_k() -> None:
    kept = {name: np.count_nonzero(probs_of([1.0, 1.0, 1.0, 0.0], top_k=2, preset=name)) for name in PRESETS}
    assert kept == {"vllm": 3, "hf": 3, "llama.cpp": 2, "mlx": 2}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_t31_top_p_at_exact_masses(dtype: str) -> None:
    logits = np.log([0.5, 0.25, 0.25]).tolist()
    assert probs_of(logits, top_p=0.5, dtype=dtype) == [1.0, 0.0, 0.0]
    two = probs_of(logits, top_p=0.75, dtype=dtype)
    np.testing.assert_allclose(two, [2 / 3, 1 / 3, 0.0], rtol=1e-6)
    assert two[2] == 0.0
    assert probs_of(logits, top_p=0.75, dtype=dtype, preset="hf")[1] == 0.0, "an ascending sort drops the lower id"


def test_t31_top_p_one_keeps_all_and_the_smallest_keeps_one() -> None:
    logits = torch.linspace(-30, 3, 5001).tolist()
    assert np.count_nonzero(probs_of(logits, top_p=1.0, dtype="float32")) == 5001
    assert law_of(logits, top_p=5e-324) == PointMass(5000)
    assert law_of([0.0] * 4, top_p=1e-9) == PointMass(0)


def test_t31_top_p_at_a_rounded_edge_is_the_same_in_a_block_and_alone() -> None:
    logits = torch.tensor(np.log([[0.5, 0.3, 0.2]] * 4), dtype=torch.float32)
    row, histories = resolve(SamplingParams(top_p=0.8), None, 3), block([], [], [0, 1, 2])
    together = SamplerChain().laws(logits, row, histories)
    alone = [SamplerChain().laws(logits[i : i + 1], row, histories[i : i + 1])[0] for i in range(4)]
    assert all(map(same_bits, together, alone))


def test_t32_temperature_zero_is_the_maximum_whatever_the_filters() -> None:
    assert law_of([0.0, 2.0, 2.0], temperature=0) == PointMass(1)
    assert law_of([0.0, 2.0, 2.0], temperature=0, top_p=1.0, top_k=50, min_p=0.5) == PointMass(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_t32_tiny_temperatures_are_honoured_without_nan(temperature: float, dtype: str) -> None:
    assert law_of([1.0, 0.75, -3.0], temperature=temperature, dtype=dtype) == PointMass(0)
    ties = probs_of([1.0, 0.75, 1.0], temperature=temperature, dtype=dtype)
    assert ties == [0.5, 0.0, 0.5], "ties are not argmax"


def test_t32_small_temperature_is_not_clamped() -> None:
    row = probs_of([1.00, 0.99], temperature=0.001)
    np.testing.assert_allclose(row, [0.99995, 0.00005], atol=6e-6)
    assert probs_of([1.00, 0.99], temperature=0.01)[0] == pytest.approx(0.731, abs=6e-4), "what a clamp to .01 gives"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_t32_huge_temperature(dtype: str) -> None:
    row = probs_of([1.0, -50.0, 30.0, 0.0], temperature=1e30, dtype=dtype)
    np.testing.assert_allclose(row, 0.25, rtol=1e-6)


def test_t32_unset_temperature_is_one_with_top_k() -> None:
    assert SamplingParams(top_k=50).temperature == 1.0
    assert probs_of(LOGITS, top_k=50) == probs_of(LOGITS, temperature=1.0)
    assert isinstance(law_of(LOGITS, top_k=50), Dense)


def test_t33_mixed_batch_rows_equal_single_rows() -> None:
    logits = torch.randn(7, 3000, generator=torch.Generator().manual_seed(33))
    greedy, plain, nucleus = (
        resolve(SamplingParams(**fields), None, 3000)
        for fields in ({"temperature": 0.0}, {}, {"temperature": 0.7, "top_p": 0.9, "seed": 1})
    )
    params = [greedy, greedy, greedy, greedy, plain, nucleus, nucleus]
    histories = block([1], [2], [3, 4, 5]) + [History([6])] + block([7], [], [8])
    together = SamplerChain().laws(logits, params, histories)
    for i in range(7):
        alone = SamplerChain().laws(logits[i : i + 1], params[i], histories[i : i + 1])[0]
        assert same_bits(together[i], alone)
        if params[i] is greedy:
            assert together[i] == PointMass(int(logits[i].argmax()))


def test_t34_a_filter_drops_tokens_and_moves_nothing_among_the_rest() -> None:
    # The chain consumes no noise, so the draw sees a filter as zeros alone: same ids, same ratios.
    plain, filtered = probs_of(LOGITS), probs_of(LOGITS, top_k=3)
    assert [p > 0 for p in filtered] == [True, True, True, False]
    np.testing.assert_allclose(np.array(filtered[:3]) / filtered[0], np.array(plain[:3]) / plain[0], rtol=1e-12)


def test_t35_no_row_leaves_a_trace() -> None:
    chain = SamplerChain()
    row = resolve(SamplingParams(frequency_penalty=0.5, repetition_penalty=1.3, min_tokens=3), None, 4, [2])
    histories = block([1], [0, 3], [3, 3])
    logits = torch.tensor([LOGITS] * 3)
    before = (logits.clone(), [(h.prompt_ids, h.output_ids, Counter(h.output_ids)) for h in histories])
    first = chain.laws(logits, row, histories)
    backwards = chain.laws(logits.flip(0), row, histories[::-1])[::-1]
    again = chain.laws(logits, row, histories)
    assert all(map(same_bits, first, backwards)) and all(map(same_bits, first, again))
    assert torch.equal(logits, before[0])
    assert [(h.prompt_ids, h.output_ids, Counter(h.output_ids)) for h in histories] == before[1]


class _Tally:
    """A processor whose state is the tokens that it was extended by; bans a third 1."""

    def __init__(self, token_ids: tuple[int, ...] = ()) -> None:
        self.token_ids = token_ids

    def __call__(self, token_ids: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        if self.token_ids.count(1) >= 2:
            logits[1] = -torch.inf
        return logits

    def fork(self) -> "_Tally":
        return self

    def extended(self, token_id: int) -> "_Tally":
        return _Tally((*self.token_ids, token_id))


@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_t35_a_state_after_a_pass_is_that_of_the_committed_tokens(num_drafts: int) -> None:
    """Drafts 1, 1, … of which the target keeps two at most: rows below may not move the state, nor the bonus row."""
    chain, row = SamplerChain(), resolve(SamplingParams(temperature=0.0, logits_processors=[_Tally()]), None, 4)
    logits = torch.tensor([[0.0, 5.0, 1.0, 2.0]]).repeat(num_drafts + 1, 1)
    history = row.first_history([0])
    draft = Draft.of_token_ids(1, [1] * num_drafts)
    rows = laws_along(chain, logits, row, history, draft.token_ids, draft.parents)
    verdict = get_verifier("greedy").verify(draft, rows, KeyedNoise(1))
    assert verdict.token_ids == (1, 1, 3)[: num_drafts + 1]
    after = history.extended(verdict.token_ids)
    plain = history
    for token_id in verdict.token_ids:
        [law] = chain.laws(logits[:1], row, [plain])
        assert law == PointMass(token_id)
        plain = plain.extended((token_id,))
    assert after.states[0].processor.token_ids == plain.states[0].processor.token_ids == verdict.token_ids
    assert history.states[0].processor.token_ids == ()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_t47_padded_columns_are_cut_off(temperature: float) -> None:
    real, padding = torch.full((1, 11), -4.0), torch.zeros(1, 5)
    real[0, 6] = -1.0
    row = resolve(SamplingParams(temperature=temperature), None, 11)
    law = SamplerChain().laws(torch.cat([real, padding], dim=1), row, [History([1])])[0]
    assert law.argmax() == 6
    assert all(law.prob(i) == 0 for i in range(11, 16))
    assert SamplerChain().probs(torch.cat([real, padding], dim=1), row, [History([1])]).shape == (1, 11)
