"""Invariant execution: bits, not tolerances."""

import pytest
import torch

from draftproof.errors import UnsupportedModelError
from draftproof.targets import driven, invariant, packed
from draftproof.targets.base import ScoreRequest
from draftproof.targets.branches import Room
from draftproof.targets.cpu_linear import can_pack
from draftproof.targets.extents import num_columns
from draftproof.targets.hf import HFTarget
from draftproof.targets.invariant import FEW_TOKENS
from draftproof.targets.products import pack_linears
from draftproof.targets.shapes import KEY_STEP, SPARE, ExactShapes, FixedShapes, StepShapes
from tests.targets.models import ARCHITECTURES, VOCAB_SIZE, attention_in_blocks, random_ids, score_one, tiny_model

DTYPES = (torch.float32, torch.bfloat16)
WIDTH = 16
# Tokens 250 … 270 cross a step of keys at 256.
NUM_TOKENS, FIRST = 270, 235


def make(name: str, dtype: torch.dtype, policy: str, num_slots: int) -> HFTarget:
    model = tiny_model(name, dtype)
    if policy == "packed" and can_pack(dtype, model.device):
        pack_linears(model)
    target = HFTarget(model, num_slots=num_slots)
    shapes = (
        FixedShapes(WIDTH)
        if policy == "fixed"
        else StepShapes(target.row_window()[0], most_tokens=target.row_window()[1])
    )
    assert invariant.probe(target, shapes) is None
    target.shapes = shapes
    return target


def teacher_forced(target: HFTarget, slot: int, token_ids: list[int], cuts: list[int], junk: bool) -> torch.Tensor:
    """Logits of the tokens that are not cached yet, scored in pieces of the given sizes in turn; with `junk`, beside
    another slot's tokens, and with wrong drafts behind that are taken back."""
    rows, turn = [], 0
    neighbour = (slot + 1) % target.num_slots
    while target.length(slot) < len(token_ids):
        start = target.length(slot)
        width = min(cuts[turn % len(cuts)], target.room(slot), len(token_ids) - start)
        num_drafts = min(3, target.room(slot) - width) if junk else 0
        drafts = [(token + 5) % VOCAB_SIZE for token in token_ids[:num_drafts]]
        requests = [ScoreRequest(slot, (*token_ids[start : start + width], *drafts))]
        if junk and neighbour != slot:
            target.release(neighbour)
            target.prefill(neighbour, random_ids(1 + 130 * (turn % 3), seed=turn))
            requests.insert(turn % 2, ScoreRequest(neighbour, (7, 8)))
        outs = dict(zip([request.slot for request in requests], target.score(requests), strict=True))
        rows.append(outs[slot][:width])
        target.rewind(slot, start + width)
        turn += 1
    return torch.cat(rows)


def bits(target: HFTarget, slot: int, cuts: list[int], junk: bool, prefill: list[int]) -> torch.Tensor:
    """Prefill tokens 0 .. FIRST - 1 in the given pieces, then score the others."""
    token_ids = random_ids(NUM_TOKENS)
    target.release(slot)
    done = 0
    for size in prefill:
        target.prefill(slot, token_ids[done : done + size])
        done += size
    target.prefill(slot, token_ids[done:FIRST])
    return teacher_forced(target, slot, token_ids, cuts, junk)


@pytest.mark.parametrize("policy", ["packed", "fixed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_same_bits_however_the_tokens_are_cut(name: str, dtype: torch.dtype, policy: str) -> None:
    """Row index, chunking of prefill, junk behind, neighbours, slot, and a step of keys at 256."""
    target = make(name, dtype, policy, num_slots=2)
    want = bits(target, 0, [1], junk=False, prefill=[])
    for slot, cuts, junk, prefill in (
        (0, [4], False, [100, 3]),
        (1, [9, 2], True, [1, 200]),
        (0, [1, 5, 3, 8], True, [FIRST - 1]),
        (1, [12, 7], False, [64, 64, 64]),
    ):
        got = bits(target, slot, cuts, junk, prefill)
        assert got.dtype == dtype and torch.isfinite(got).all()
        assert torch.equal(got, want), (slot, cuts, junk, prefill)


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
def test_a_prompts_length_does_not_matter(dtype: torch.dtype) -> None:
    """Prompt and generated tokens are the same to the target: prefilled or scored one by one, the same bits."""
    target, token_ids = make("qwen3", dtype, "packed", num_slots=1), random_ids(60)
    rows = []
    for prompt_length in (1, 17, 58):
        target.release(0)
        target.prefill(0, token_ids[:prompt_length])
        rows.append(teacher_forced(target, 0, token_ids, [3, 1], junk=False)[-2:])
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])


@pytest.mark.parametrize("policy", ["packed", "fixed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_trees_path_has_its_chains_bits(name: str, dtype: torch.dtype, policy: str) -> None:
    """Its logits, and after the rewind those of the tokens that follow."""
    target, context = make(name, dtype, policy, num_slots=2), random_ids(30)
    parents, tokens, path = (-1, 0, 0, 2, 1), [4, 5, 6, 7, 8], [0, 2, 3]
    target.prefill(0, context)
    target.prefill(1, context[:5])
    tree = target.score([ScoreRequest(1, (5,)), ScoreRequest(0, tuple(tokens), parents)])[1][path]
    target.rewind(0, 33, path)
    after_tree = score_one(target, 0, [9, 10])
    target.rewind(0, 30)
    chain = torch.cat([score_one(target, 0, [tokens[node]]) for node in path])
    assert torch.equal(tree, chain)
    assert torch.equal(after_tree, score_one(target, 0, [9, 10]))


def test_trees_under_eager_attention_are_refused() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation("eager")
    pack_linears(model)
    target = HFTarget(model, invariant=True)
    score_one(target, 0, [1, 2])
    with pytest.raises(UnsupportedModelError, match="draft chains"):
        score_one(target, 0, [1, 2, 3], (-1, 0, 0))


def test_how_many_tokens_fit_a_forward() -> None:
    """A token reads the step that holds its position, so a row of tokens may pass a step."""
    steps = StepShapes()
    assert [steps.key_length(position) for position in (0, 63, 64, 599)] == [64, 64, 128, 640]
    target = HFTarget(tiny_model("llama"), num_slots=2, max_model_len=600)
    for shapes, widest in ((steps, 600), (FixedShapes(16), 16)):
        target.shapes = shapes
        assert [target.room(0, length) for length in (0, 250, 590, 600)] == [
            min(widest, 600 - length) for length in (0, 250, 590, 600)
        ]


def test_a_token_reads_spare_columns_as_far_as_its_slot_has_any() -> None:
    """What it reads is a function of its position alone, and never another slot's columns."""
    steps = StepShapes(spare_from=3 * KEY_STEP)
    assert [steps.key_length(position) for position in (0, 63, 64, 127, 128, 191, 192, 255, 256)] == [
        64, 64, 128, 128, 256, 256, 256, 256, 384,
    ]  # fmt: skip
    for position in range(1200):
        wanted = min(position + 1 + (SPARE if position >= 128 else 0), num_columns(position + 1))
        assert wanted <= steps.key_length(position) <= num_columns(position + 1)


def test_columns_are_spared_from_the_number_of_keys_that_no_larger_one_can_take_the_place_of() -> None:
    target = HFTarget(tiny_model("llama"), invariant=True)
    if type(target.shapes) is StepShapes:
        assert target.shapes.spare_from == target.spare_from()
    asked = []

    def rooms(first: int, last: int) -> list[Room]:
        asked.append((first, last))
        return [Room(first, first)] if first == 192 else [Room(first, first), Room(256, 256)]

    target._runner.rooms = rooms
    assert target.spare_from() == 192 and asked[-1] == (192, 192)
    target._runner.rooms = lambda first, last: [Room(first, first), Room(first + 64, first + 64)]
    assert target.spare_from() is None
    target.keep_branches_in_place(False)
    assert not target.spreads_branches and target.spare_from() is None


def test_a_model_with_attention_of_its_own_stops_at_a_key_step() -> None:
    model = tiny_model("llama")
    model.set_attn_implementation("eager")
    target = HFTarget(model, max_model_len=600)
    for shapes, widest in ((StepShapes(), KEY_STEP), (FixedShapes(16), 16)):
        target.shapes = shapes
        assert [target.room(0, length) for length in (0, KEY_STEP - 3, KEY_STEP, 598, 600)] == [widest, 3, widest, 2, 0]


def test_requests_of_several_key_steps_share_a_forward() -> None:
    target = HFTarget(tiny_model("llama"), num_slots=3)
    for shapes in (StepShapes(), FixedShapes(8)):
        target.shapes = shapes
        for slot in range(3):
            target.release(slot)
        target.prefill(1, random_ids(300))
        rows = target.score([ScoreRequest(1, (5, 6)), ScoreRequest(0, (1, 2, 3)), ScoreRequest(2, (7,), num_rows=0)])
        assert [tuple(out.shape) for out in rows] == [(2, VOCAB_SIZE), (3, VOCAB_SIZE), (0, VOCAB_SIZE)]


class Drifting(torch.nn.Module):
    """A linear layer whose result depends on the number of rows beside it, as kernels' do."""

    def __init__(self, linear: torch.nn.Linear, always: bool) -> None:
        super().__init__()
        self.linear, self.always, self.calls = linear, always, 0
        self.out_features = linear.out_features

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        drift = self.calls if self.always else features.shape[:-1].numel()
        return self.linear(features) * (1 + 1e-6 * drift)


def test_the_probe_finds_layers_that_depend_on_the_width() -> None:
    model = tiny_model("llama")
    model.lm_head = Drifting(model.lm_head, always=False)
    target = HFTarget(model)
    difference = invariant.probe(target, StepShapes())
    assert difference is not None and "changes token" in difference
    assert isinstance(HFTarget(model, invariant=True).shapes, FixedShapes)


def test_padding_is_chosen_by_speed_among_equal_bits(monkeypatch) -> None:
    target = make("llama", torch.bfloat16, "packed", num_slots=1)
    rows = []
    for num_tokens in (target.shapes.min_tokens, max(target.shapes.min_tokens, FEW_TOKENS)):
        target.shapes = StepShapes(num_tokens)
        rows.append(score_one(target, 0, random_ids(1)))
        target.rewind(0, 0)
    assert torch.equal(*rows)
    kept = target.shapes
    assert [invariant._cheapest(target, num_rows, None) for num_rows in (1, FEW_TOKENS, 9)] == [1, FEW_TOKENS, 9]
    for slow in (2, FEW_TOKENS):
        clock = SlowClock(target, slow)
        monkeypatch.setattr(invariant.time, "perf_counter", clock)
        assert {invariant._cheapest(target, 2, None), slow} == {2, FEW_TOKENS}
        assert target.shapes is kept


class SlowClock:
    """Forwards that are padded to `slow` tokens take a second, others a tenth."""

    def __init__(self, target: HFTarget, slow: int) -> None:
        self.target, self.slow, self.now = target, slow, 0.0

    def __call__(self) -> float:
        self.now += 1.0 if self.target.shapes.min_tokens == self.slow else 0.1
        return self.now


def test_a_model_without_any_invariant_policy_is_refused() -> None:
    model = tiny_model("llama")
    model.lm_head = Drifting(model.lm_head, always=True)
    with pytest.raises(UnsupportedModelError, match="--no-invariant"):
        HFTarget(model, invariant=True)
    assert isinstance(HFTarget(model).shapes, ExactShapes)


def test_the_probe_leaves_the_model_and_the_slots_as_they_were() -> None:
    model = tiny_model("llama")
    target = HFTarget(model, num_slots=2, invariant=True)
    assert model.config.num_hidden_layers == 3
    assert [target.length(slot) for slot in (0, 1)] == [0, 0]
    assert target.cache.capacity == 0


def test_cuts_hold_every_width_and_the_same_tokens() -> None:
    assert all(sum(cut) == invariant.NUM_TOKENS for cut in invariant.CUTS)
    assert set(range(1, 19)) <= {size for cut in invariant.CUTS for size in cut}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_linears_compute_the_same(name: str) -> None:
    model, token_ids = tiny_model(name), torch.tensor([random_ids(20)])
    with torch.no_grad():
        want = model(input_ids=token_ids, use_cache=False).logits
        # Seven linear layers in each of three blocks, and the output layer.
        assert pack_linears(model) == 22
        got = model(input_ids=token_ids, use_cache=False).logits
    assert torch.allclose(got, want, rtol=0, atol=1e-4)


TREES = ((-1, 0, 0), (-1, 0, 0, 1, 2, 2), (-1, 0, 0, 0, 1, 4, 5, 2, 2), (-1, 0, *[0] * 9))


@pytest.mark.parametrize("block", [None, 128], ids=["own", "blocks"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_tree_in_place_has_the_bits_of_its_chains_and_leaves_nothing(
    monkeypatch, name: str, dtype: torch.dtype, block: int | None
) -> None:
    """Near and far from the end of a step of keys, alone and beside another slot's tree; then the kept path goes on.

    By the machine's own attention, and by one of which it is known that branches in place agree.
    """
    if block is not None:
        monkeypatch.setattr(packed, "scaled_dot_product_attention", attention_in_blocks(block))
    target = HFTarget(tiny_model(name, dtype), num_slots=2, invariant=True)
    assert target.keeps_branches_in_place or block is None
    text, num_in_place, num_copied, num_both = random_ids(400), 0, 0, 0
    starts = (1, 7, 15, 16, 30, 63, 77, 100, 127, 180, 200, 250, 255, 256, 300)
    for turn, start in enumerate(starts if block is None else starts[2::3]):
        parents = TREES[turn % len(TREES)]
        nodes = random_ids(len(parents), seed=turn)
        for slot in range(2):
            target.release(slot)
            target.prefill(slot, text[: start + 3 * slot])
        requests = [ScoreRequest(slot, tuple(nodes), parents) for slot in range(1 + turn % 2)]
        rows = target.score(requests)[0]
        num_in_place += len(target._contents.branches)
        num_copied += len(requests) - len(target._contents.branches)
        num_both += sum(bool(found.others) for found in target._contents.branches.values())
        path = [max(set(range(len(parents))).difference(parents))]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        for request in requests:
            target.rewind(request.slot, start + 3 * request.slot + len(path), path)
        for group in target.cache.groups:
            for buffer in (group.keys, group.values):
                for slot in range(2):
                    offset, size = target.cache.extents.offsets[slot], target.cache.extents.sizes[slot]
                    assert not buffer[:, :, offset + target.length(slot) : offset + size].any()
        after = score_one(target, 0, [3, 5])
        target.release(0)
        target.prefill(0, text[:start])
        chain = [score_one(target, 0, [token]) for token in [*(nodes[node] for node in path), 3, 5]]
        assert torch.equal(torch.cat([rows[path], after]), torch.cat(chain)), start
    # By the machine's own attention any tree may have a place, or none, or lanes (`test_lanes.py`).
    assert num_in_place + num_copied > 0 and (block is None or min(num_in_place, num_copied, num_both) > 0)


def test_branches_are_in_place_unless_they_are_not_wanted() -> None:
    assert HFTarget(tiny_model("llama"), invariant=True).keeps_branches_in_place
    assert not HFTarget(tiny_model("llama"), invariant=True, branches_in_place=False).keeps_branches_in_place


def test_copies_are_made_where_branches_in_place_do_not_agree(monkeypatch) -> None:
    """A machine on which the question has the wrong answer: the model's own bits tell, and trees get copies."""
    monkeypatch.setattr(driven, "spreads", lambda *_: True)
    real = packed.branch_mask
    monkeypatch.setattr(packed, "branch_mask", lambda *args: real(*args).roll(1, dims=-1))
    target = HFTarget(tiny_model("llama"), invariant=True)
    assert not target.keeps_branches_in_place and isinstance(target.shapes, StepShapes)
    assert invariant.probe(target, target.shapes) is None


def test_how_many_branches_are_cheap_is_said_where_some_ever_are(monkeypatch) -> None:
    """At a block's end one, which needs no place; any number where trees always get copies, or lanes."""
    token_ids = random_ids(100)
    monkeypatch.setattr(driven, "moves_blocks", lambda *_: 0)
    for rooms, expected in ((lambda chain, room: chain <= 64, 1), (lambda *_: False, None), (lambda *_: True, 5)):
        monkeypatch.setattr(driven, "spreads", lambda layers, heads, chain, room, rooms=rooms: rooms(chain, room))
        target = HFTarget(tiny_model("llama"), invariant=True, branches_in_place=False)
        target.keep_branches_in_place(True)
        target.prefill(0, token_ids)
        assert target.num_branches(0, 4) == expected
