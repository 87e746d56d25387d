"""HFTarget against the model's own plain forward: chunks, rewinds, ragged batches, positions, bad input.

Tolerance: float32 sums of at most 64 terms of order 1 taken in another order differ by some 1e-6 of the logits'
size (up to 30 here); 1e-4 is far above that and far below the effect of one wrong position or mask entry, which
test_the_tolerance_sees_one_wrong_position measures.
"""

import pytest
import torch

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from tests.targets.models import ARCHITECTURES, VOCAB_SIZE, plain_logits, random_ids, score_one, tiny_model

TOLERANCE = 1e-4


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool(torch.allclose(got, want, rtol=0, atol=TOLERANCE))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest):
    return tiny_model(request.param)


def test_chunks_equal_the_plain_forward(model) -> None:
    token_ids = random_ids(40)
    want = plain_logits(model, token_ids)
    target = HFTarget(model)
    target.prefill(0, token_ids[:13])
    rows = [score_one(target, 0, token_ids[start:stop]) for start, stop in ((13, 14), (14, 19), (19, 20), (20, 40))]
    assert target.length(0) == 40
    assert close(torch.cat(rows), want[13:])


def test_the_tolerance_sees_one_wrong_position() -> None:
    model, token_ids = tiny_model("llama"), random_ids(20)
    positions = torch.arange(20)[None].clone()
    positions[0, 19] += 1
    with torch.no_grad():
        moved = model(input_ids=torch.tensor([token_ids]), position_ids=positions, use_cache=False).logits[0, -1]
    assert (moved - plain_logits(model, token_ids)[-1]).abs().max() > 100 * TOLERANCE


def test_rejected_drafts_leave_no_trace(model) -> None:
    """T62: after reject and rewind, teacher-forced logits equal a fresh prefill's. T58: lengths at each round."""
    truth = random_ids(60)
    want = plain_logits(model, truth)
    target = HFTarget(model)
    target.prefill(0, truth[:20])
    position, num_drafted = 20, 5
    for num_accepted in (0, 5, 2, 0, 1, 4, 3):
        wrong = [(token + 1) % VOCAB_SIZE for token in truth[position + 1 + num_accepted :]]
        drafts = truth[position + 1 : position + 1 + num_accepted] + wrong
        rows = score_one(target, 0, [truth[position], *drafts[:num_drafted]])
        assert target.length(0) == position + 1 + num_drafted
        assert close(rows[: num_accepted + 1], want[position : position + num_accepted + 1])
        position += num_accepted + 1
        target.rewind(0, position)
        assert target.length(0) == position  # prompt + emitted - 1: the seed token of the next round is not cached


def test_ragged_batches_equal_single_rows(model) -> None:
    target = HFTarget(model, num_slots=4)
    texts = [random_ids(length, seed) for seed, length in enumerate((30, 9, 21, 25))]
    cached = [24, 3, 20, 11]
    for slot, text in enumerate(texts):
        target.prefill(slot, text[: cached[slot]])
    for slots in ([2, 0, 3], [1, 2], [3, 1, 0]):
        requests = [ScoreRequest(slot, tuple(texts[slot][cached[slot] :])) for slot in slots]
        for request, rows in zip(requests, target.score(requests), strict=True):
            assert rows.shape == (len(request.token_ids), VOCAB_SIZE)
            assert close(rows, plain_logits(model, texts[request.slot])[cached[request.slot] :])
            target.rewind(request.slot, cached[request.slot])


def test_release_empties_a_slot_and_heals_nan() -> None:
    model, token_ids = tiny_model("llama"), random_ids(12)
    target = HFTarget(model, num_slots=2)
    target.prefill(1, token_ids)
    begin = target.cache.extents.offsets[1]
    for group in target.cache.groups:
        group.values[:, :, begin : begin + 12] = torch.nan
    target.release(1)
    assert target.length(1) == 0
    assert close(
        target.score([ScoreRequest(1, tuple(token_ids)), ScoreRequest(0, (1,))])[0], plain_logits(model, token_ids)
    )


def test_long_prefill_takes_several_chunks() -> None:
    model, token_ids = tiny_model("llama"), random_ids(700)
    target = HFTarget(model)
    target.prefill(0, token_ids[:690])
    assert close(score_one(target, 0, token_ids[690:]), plain_logits(model, token_ids)[690:])


def test_eager_attention_gives_the_same() -> None:
    model, token_ids = tiny_model("gemma3"), random_ids(30)
    want = plain_logits(model, token_ids)
    model.set_attn_implementation("eager")
    target = HFTarget(model)
    target.prefill(0, token_ids[:17])
    assert model.config._attn_implementation == "eager"
    assert close(score_one(target, 0, token_ids[17:]), want[17:])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_tokens_equal_generate(name: str) -> None:
    """Windows of 8 tokens are passed many times over; transformers' own cache drops what leaves the window."""
    model, prompt = tiny_model(name), random_ids(11)
    target = HFTarget(tiny_model(name))
    arguments = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 0}
    want = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, 11, dtype=torch.long), **arguments)
    target.prefill(0, prompt[:-1])
    emitted = [prompt[-1]]
    for _ in range(30):
        rows = score_one(target, 0, [emitted[-1], 1, 2])
        emitted.append(int(rows[0].argmax()))
        target.rewind(0, target.length(0) - 2)
    assert emitted[1:] == want[0, 11:].tolist()


def test_the_model_stays_usable_by_transformers() -> None:
    model, token_ids = tiny_model("mistral"), random_ids(25)
    want = plain_logits(model, token_ids)
    HFTarget(model)
    assert close(plain_logits(model, token_ids), want)


def test_rewind_refuses_what_is_not_there() -> None:
    target = HFTarget(tiny_model("llama"))
    target.prefill(0, [1, 2, 3])
    for length in (-1, 4):
        with pytest.raises(ParameterError, match="between 0 and the slot's length 3"):
            target.rewind(0, length)


def test_bad_tokens_never_reach_the_embedding() -> None:
    target = HFTarget(tiny_model("llama"), num_slots=2)
    for wrong in (-1, VOCAB_SIZE):
        with pytest.raises(ParameterError, match="ids from 0 to 63"):
            score_one(target, 0, [1, wrong])
        with pytest.raises(ParameterError, match="ids from 0 to 63"):
            target.prefill(0, [1, wrong])
    with pytest.raises(ParameterError, match="token_ids"):
        score_one(target, 0, [])
    with pytest.raises(ParameterError, match="slot"):
        score_one(target, 2, [1])
    with pytest.raises(ParameterError, match="each on its own slot"):
        target.score([ScoreRequest(0, (1,)), ScoreRequest(0, (2,))])
    with pytest.raises(ParameterError, match="requests"):
        target.score([])
    assert (target.length(0), target.length(1)) == (0, 0)


def test_the_models_length_is_kept() -> None:
    model = tiny_model("llama", max_position_embeddings=32)
    target = HFTarget(model)
    assert target.max_model_len == 32
    target.prefill(0, random_ids(30))
    assert target.room(0) == 2
    with pytest.raises(ParameterError, match="room"):
        score_one(target, 0, [1, 2, 3])
    score_one(target, 0, [1, 2])
    assert target.room(0) == 0
    with pytest.raises(ParameterError, match="the model reads 32 tokens"):
        target.prefill(0, [1])
    for wrong in (0, 33):
        with pytest.raises(ParameterError, match="max_model_len"):
            HFTarget(model, max_model_len=wrong)
    with pytest.raises(ParameterError, match="num_slots"):
        HFTarget(model, num_slots=0)


def test_rotary_frequencies_that_change_with_length_are_refused() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
        "factor": 16.0,
    }
    model = tiny_model("llama", rope_parameters=rope)
    with pytest.raises(UnsupportedModelError, match="max_model_len=64 or less"):
        HFTarget(model)
    assert HFTarget(model, max_model_len=64).max_model_len == 64


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("invariant", [False, True])
def test_float64_runs_and_agrees_with_the_plain_call(architecture: str, invariant: bool) -> None:
    """Masks of the lowest float64 once overflowed on their way through float32, so that no float64 model ran."""
    model = tiny_model(architecture, torch.float64)
    target, ids = HFTarget(model, invariant=invariant), random_ids(20)
    target.prefill(0, ids[:7])
    assert torch.allclose(score_one(target, 0, ids[7:]), plain_logits(model, ids)[7:], rtol=0, atol=1e-10)
