"""Recurrent and hybrid targets: against the model's own forward, against plain decoding, and after rewinds (T59)."""

import copy

import pytest
import torch
from transformers import DynamicCache

from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from draftproof.targets.recurrent import functions, states, steps
from draftproof.targets.recurrent.scan import Plan, fixed_sum, scan
from draftproof.targets.recurrent.states import RecurrentStates
from tests.targets.models import plain_logits, random_ids, score_one, tiny_model
from tests.targets.recurrent_models import ARCHITECTURES, EXPERTS_TOO, recurrent_model
from tests.targets.rewinds import wrong_rewinds

# Of the spread of the logits. transformers sums over chunks, here token by token: in float64 against float32 the same
# model's logits differ by as much. A convolution that is off by one token moves them by a tenth and more.
TOLERANCE = 1e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def make(name: str, dtype: torch.dtype = torch.float32, scale: float = 0.3, **settings) -> HFTarget:
    return HFTarget(recurrent_model(name, dtype, scale=scale), num_slots=4, max_model_len=128, **settings)


def test_chunks_and_rewinds_equal_the_plain_forward(name: str) -> None:
    model, token_ids = recurrent_model(name), random_ids(40)
    want = plain_logits(model, token_ids)
    target = HFTarget(model, num_slots=2, max_model_len=128)
    target.prefill(0, token_ids[:13])
    rows = [score_one(target, 0, token_ids[13:14]), score_one(target, 0, token_ids[14:19])]
    target.prefill(1, token_ids[:3])
    requests = [ScoreRequest(1, (*token_ids[3:10],)), ScoreRequest(0, (*token_ids[19:23], 1, 2, 3))]
    other, found = target.score(requests)
    target.rewind(0, 23)
    target.rewind(1, 5)
    rows += [found[:4], score_one(target, 0, token_ids[23:])]
    limit = TOLERANCE * (want.max() - want.min())
    assert (torch.cat(rows) - want[13:]).abs().max() < limit
    assert (other - want[3:10]).abs().max() < limit
    assert (score_one(target, 1, token_ids[5:]) - want[5:]).abs().max() < limit


def test_states_after_rewinds_are_those_of_plain_decoding(name: str) -> None:
    """Within 1e-5 in float32 without `invariant`. The mutants below differ by more at the same scale."""
    target = make(name, scale=0.1)
    assert [wrong_rewinds(target, seed, exact=False, tolerance=1e-5) for seed in range(3)] == [[], [], []]


@pytest.mark.parametrize("dtype", DTYPES)
def test_under_invariant_they_are_the_same_bits(name: str, dtype: str) -> None:
    if (name, dtype) == (EXPERTS_TOO, "fp32"):
        with pytest.raises(UnsupportedModelError, match="invariant execution can't be had"):
            make(name, DTYPES[dtype], invariant=True)
        return
    target = make(name, DTYPES[dtype], invariant=True)
    assert [wrong_rewinds(target, seed, exact=True) for seed in range(2)] == [[], []]


def test_a_rewind_runs_the_same_steps_over_the_recorded_inputs(name: str) -> None:
    """Bit for bit, without `invariant`: each layer's recorded inputs, one token at a time by hand."""
    target = make(name)
    for num_kept in range(1, 7):
        target.release(0)
        target.prefill(0, random_ids(9))
        score_one(target, 0, random_ids(7, seed=num_kept))
        target.rewind(0, 9 + num_kept)
        recurrent = target.cache.recurrent
        expected = {layer: _by_hand(recurrent, layer, 9 + num_kept) for layer in recurrent.layers}
        for layer in recurrent.layers:
            for found, wanted in zip(recurrent.state(0, layer), expected[layer], strict=True):
                assert torch.equal(found, wanted)


def _by_hand(recurrent: RecurrentStates, layer: int, length: int) -> list[torch.Tensor]:
    entry, buffers = recurrent._slots[0], recurrent._layers[layer]
    inputs = states.joined(entry.recorded[layer], 0, length - entry.start)
    convolved = buffers.convolved[0][0]
    for row in inputs.convolved:
        convolved = torch.cat([convolved[1:], row[None]])
    if buffers.state is None:
        return [convolved]
    state = buffers.state[0][:1].clone()
    for token in range(length - entry.start):
        state = buffers.recurrence.advance(state, *(write[token : token + 1] for write in inputs.writes))
    return [convolved, state[0]]


def test_t59_the_next_pass_starts_from_the_accepted_token(name: str) -> None:
    """Drafts of three, one accepted, then a pass without drafts; and an accepted length on a chunk's edge."""
    target, token_ids = make(name), random_ids(24)
    want = plain_logits(target.model, token_ids)
    limit = TOLERANCE * (want.max() - want.min())
    target.prefill(0, token_ids[:8])
    score_one(target, 0, [*token_ids[8:10], 1, 2])
    target.rewind(0, 10)
    assert (score_one(target, 0, token_ids[10:11])[0] - want[10]).abs().max() < limit
    for length in (12, 16):
        score_one(target, 0, [*token_ids[11:length], 3, 3])
        target.rewind(0, length)
        row = score_one(target, 0, token_ids[length : length + 1])[0]
        assert (row - want[length]).abs().max() < limit
        target.rewind(0, length)
        target.rewind(0, length)
        target.release(0)
        target.prefill(0, token_ids[:11])


def test_transformers_crop_leaves_a_gated_delta_state_where_the_drafts_left_it() -> None:
    """What `record and crop` of transformers restores is the convolution alone; ours restores both."""
    model, token_ids = recurrent_model("qwen3_next"), random_ids(16)
    cache = DynamicCache(config=model.config)
    argument = "cache" if "cache" in model.forward.__wrapped__.__code__.co_varnames else "past_key_values"
    with torch.no_grad():
        model(input_ids=torch.tensor([token_ids[:10]]), use_cache=True, **{argument: cache})
        for layer in cache.layers:
            if hasattr(layer, "activate_past_recording"):
                layer.activate_past_recording()
        before = copy.deepcopy(cache.layers[0].recurrent_states[0])
        model(input_ids=torch.tensor([token_ids[10:]]), use_cache=True, **{argument: cache})
    cache.layers[0].crop(-6)
    theirs = cache.layers[0].recurrent_states[0]
    assert (theirs - before).abs().max() > 1e-3
    target = HFTarget(model, max_model_len=128)
    target.prefill(0, token_ids[:10])
    expected = target.recurrent_states(0)["layer 0, state"]
    score_one(target, 0, token_ids[10:])
    target.rewind(0, 10)
    assert torch.equal(target.recurrent_states(0)["layer 0, state"], expected)
    assert (expected - before[0]).abs().max() < 1e-5


def test_copies_go_as_far_as_the_state_can_be_had(name: str) -> None:
    target, token_ids = make(name), random_ids(30)
    want = plain_logits(target.model, token_ids)
    limit = TOLERANCE * (want.max() - want.min())
    target.prefill(0, token_ids[:10])
    target.prefill(0, token_ids[10:20])
    assert [target.reachable(0, length) for length in (5, 10, 13, 20, 25)] == [0, 10, 13, 20, 20]
    for slot, length in ((1, 10), (2, 13), (3, 20)):
        target.copy(0, slot, length)
        assert (score_one(target, slot, token_ids[length:]) - want[length:]).abs().max() < limit
    with pytest.raises(ParameterError, match="still there"):
        target.copy(0, 1, 9)
    with pytest.raises(ParameterError, match="not further"):
        target.rewind(0, 9)
    assert target.length(0) == 20
    assert (score_one(target, 0, token_ids[20:]) - want[20:]).abs().max() < limit
    target.rewind(0, 0)
    assert (score_one(target, 0, token_ids) - want).abs().max() < limit


def test_without_a_rewind_the_newest_half_can_still_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST_RECORDED", 16)
    target, token_ids = make("qwen3_5"), random_ids(60)
    want = plain_logits(target.model, token_ids)
    for token in token_ids[:50]:
        score_one(target, 0, [token])
    assert target.reachable(0, 42) == 42 and target.reachable(0, 25) == 0
    target.rewind(0, 43)
    assert (score_one(target, 0, token_ids[43:]) - want[43:]).abs().max() < TOLERANCE * (want.max() - want.min())


def test_a_forward_that_breaks_changes_no_state() -> None:
    target, token_ids = make("lfm2"), random_ids(20)
    target.prefill(0, token_ids[:10])
    before = target.recurrent_states(0)
    head = target.model.lm_head.forward
    target.model.lm_head.forward = lambda hidden: 1 / 0
    with pytest.raises(ZeroDivisionError):
        score_one(target, 0, token_ids[10:])
    target.model.lm_head.forward = head
    target.rewind(0, 10)
    assert all(torch.equal(state, before[name]) for name, state in target.recurrent_states(0).items())


def test_what_is_refused() -> None:
    target = make("lfm2")
    with pytest.raises(UnsupportedModelError, match="follows one path"):
        score_one(target, 0, [1, 2, 3], (-1, 0, 0))
    with pytest.raises(ParameterError, match="static"):
        make("lfm2", static=True)
    eager = recurrent_model("lfm2")
    eager.set_attn_implementation("eager")
    with pytest.raises(UnsupportedModelError, match="sdpa"):
        HFTarget(eager, max_model_len=64)
    with pytest.raises(UnsupportedModelError, match="none of the recurrences known here"):
        functions.install(tiny_model("llama"), has_states=True)
    with pytest.raises(ParameterError, match="max_model_len"):
        HFTarget(recurrent_model("mamba2"))


def test_transformers_own_generate_still_works(name: str) -> None:
    model, prompt = recurrent_model(name), random_ids(7)
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    want = model.generate(torch.tensor([prompt]), **arguments)
    make(name).prefill(0, prompt)
    assert torch.equal(model.generate(torch.tensor([prompt]), **arguments), want)


def test_a_sum_by_halves_is_a_sum() -> None:
    generator = torch.Generator().manual_seed(2)
    for num_terms in range(1, 20):
        terms = torch.randint(-50, 50, (3, num_terms, 2), generator=generator).float()
        assert torch.equal(fixed_sum(terms, 1), terms.sum(1))


def test_a_scan_of_ragged_segments_is_each_segment_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    lengths, heads, dim = [2, 5, 1, 5], 3, 4
    sizes = ((heads, dim), (heads, dim), (heads,), (heads,))
    writes = tuple(torch.randn(sum(lengths), *size, generator=generator) for size in sizes)
    reads = (torch.randn(sum(lengths), heads, dim, generator=generator),)
    before = torch.randn(len(lengths), heads, dim, dim, generator=generator)
    plan = Plan.of(lengths, before.device)
    after, out = scan(steps.GatedDelta(), before[list(plan.by_length)], plan, writes, reads)
    begin = 0
    for segment, length in enumerate(lengths):
        part = slice(begin, begin + length)
        alone, read = scan(
            steps.GatedDelta(),
            before[segment : segment + 1],
            Plan.of([length], before.device),
            tuple(write[part] for write in writes),
            (reads[0][part],),
        )
        assert torch.equal(out[part], read)
        assert torch.equal(after[plan.by_length.index(segment)], alone[0])
        begin += length


class NotRestored(RecurrentStates):
    """The state stays where the rejected drafts left it (T59)."""

    def settle(self, slots, num_more=0):
        for slot in slots:
            self._slots[slot].num_recorded = min(self._slots[slot].num_recorded, self._slots[slot].num_kept)
        super().settle(slots, num_more)


class ConvolutionOffByOne(RecurrentStates):
    """The convolution's inputs end a token late where drafts were rejected."""

    def _advance(self, slots):
        recorded = {slot: dict(self._slots[slot].recorded) for slot, _ in slots}
        super()._advance(slots)
        for slot, count in slots:
            for layer, inputs in recorded[slot].items():
                whole = states.joined(inputs, 0, count + 1).convolved
                for buffer in self._layers[layer].convolved:
                    buffer[slot] = torch.cat([buffer[slot], whole[-1:]])[1:]


class WrongSlot(RecurrentStates):
    """What comes out of the kept tokens goes to the other slot."""

    def _advance(self, slots):
        super()._advance(slots)
        if len(slots) == 2:
            first, second = (slot for slot, _ in slots)
            for buffers in self._layers.values():
                for pair in buffers.pairs():
                    for buffer in pair:
                        buffer[[first, second]] = buffer[[second, first]]


class RestoredToTheStart(RecurrentStates):
    """The state goes back to where the pass began, whatever was accepted."""

    def settle(self, slots, num_more=0):
        for slot in slots:
            entry = self._slots[slot]
            if 0 < entry.num_kept < entry.num_recorded:
                start, entry.num_kept = entry.start + entry.num_kept, 0
                super().settle([slot])
                self._slots[slot].start = start
        super().settle(slots, num_more)


@pytest.mark.parametrize("mutant", [NotRestored, ConvolutionOffByOne, WrongSlot, RestoredToTheStart])
@pytest.mark.parametrize("name", ["qwen3_5", "mamba2", "lfm2"])
def test_mutants_are_caught(name: str, mutant: type[RecurrentStates]) -> None:
    target = make(name, scale=0.1)
    assert wrong_rewinds(target, 1, exact=False, tolerance=1e-5) == []
    target.cache.recurrent = mutant(target._layers.recurrent, target.num_slots)
    assert wrong_rewinds(target, 1, exact=False, tolerance=1e-5)
