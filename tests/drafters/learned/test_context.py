"""The drafter's cache: after every accept length a fresh prefill's; nothing of one request is left for another."""

import pytest
import torch

from draftproof import LLM, GenerationFailed, SamplingParams
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.block_drafter import BlockDrafter
from draftproof.drafters.learned.eight_bit import EightBitLinear
from draftproof.drafters.learned.load import load_block_drafter, load_chain_drafter
from draftproof.errors import ModelError, ParameterError
from draftproof.noise import KeyedNoise
from draftproof.sampling import History, SamplerChain
from draftproof.targets.base import ScoreRequest
from draftproof.targets.dtype import can_halve
from draftproof.targets.fused import fuse_norms, fuse_projections
from draftproof.targets.half_linear import HalfLinear
from draftproof.targets.products import pack_linears
from tests.drafters.learned.tiny import METHODS, VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.targets.models import random_ids
from tests.threads import one_thread

BLOCK = 6
# Two ways of adding up the same float32 sums, a few layers deep, values of some units.
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp
    return {method: write_drafter(method, folder("drafter"), block_size=BLOCK) for method in METHODS}


def drafter_of(method, folder, target):
    load = load_chain_drafter if config_method(method) in ("mtp", "eagle3") else load_block_drafter
    return load(folder, target, SamplerChain(), method=config_method(method))


def ask(context_ids, slot=0, num_tokens=5):
    params = SamplerChain().resolve(SamplingParams(temperature=1.0), None, VOCAB_SIZE)
    return DraftRequest(slot, list(context_ids), num_tokens, KeyedNoise(4), True, params, History(context_ids))


def committed_entries(drafter, slot, context_ids):
    """What the drafter keeps of the committed positions: a chain's last entry holds the newest token."""
    return drafter.cache.entries(slot, len(context_ids) - 1)


def fresh(method, folder, context_ids):
    target = tiny_target(num_slots=2, invariant=False)
    drafter = drafter_of(method, folder, target)
    target.prefill(0, context_ids[:-1])
    [draft] = drafter.propose([ask(context_ids)])
    return drafter, draft


def same_as_fresh(method, folder, drafter, slot, context, draft):
    """Tokens, and what the cache keeps of the committed positions, are those of a drafter that has just begun."""
    expected, fresh_draft = fresh(method, folder, context)
    kept, wanted = committed_entries(drafter, slot, context), committed_entries(expected, 0, context)
    for ours, theirs in zip(kept, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)
    assert draft.token_ids == fresh_draft.token_ids


@pytest.mark.parametrize("num_accepted", range(BLOCK))
@pytest.mark.parametrize("method", METHODS)
def test_t58_t63_every_accept_length(method, num_accepted, folders):
    """Draft, accept a of γ, commit a + 1 tokens, draft again: caches and laws are a fresh prefill's."""
    target = tiny_target(num_slots=2, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    context, others = random_ids(9, seed=1), random_ids(8, seed=2)
    target.prefill(0, context[:-1])
    for _ in range(2):
        [draft] = drafter.propose([ask(context)])
        tokens = (context[-1], *draft.token_ids)
        target.score([ScoreRequest(0, tokens)])
        a = min(num_accepted, len(draft))
        # Accepted drafts, then a token that may differ from what was drafted.
        context = [*context, *draft.token_ids[:a], others[a]]
        target.rewind(0, len(context) - 1)
    [draft] = drafter.propose([ask(context)])
    expected, fresh_draft = fresh(method, folders[method], context)
    for ours, theirs in zip(
        committed_entries(drafter, 0, context), committed_entries(expected, 0, context), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)
    assert draft.token_ids == fresh_draft.token_ids


@pytest.mark.parametrize("method", METHODS)
def test_slot_reuse_without_release(method, folders):
    """Another request in the slot: the context is the only truth."""
    target = tiny_target(num_slots=2, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    first, second = random_ids(12, seed=5), random_ids(12, seed=6)
    second[:4] = first[:4]
    target.prefill(1, first[:-1])
    drafter.propose([ask(first, slot=1)])
    target.release(1)
    target.prefill(1, second[:-1])
    [draft] = drafter.propose([ask(second, slot=1)])
    same_as_fresh(method, folders[method], drafter, 1, second, draft)


@pytest.mark.parametrize("method", METHODS)
def test_copied_prefix_and_lost_features(method, folders):
    """Entries that came from another slot bring their features; where features are lost they are made again."""
    target = tiny_target(num_slots=2, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    context = random_ids(20, seed=7)
    expected = fresh(method, folders[method], context)[1].token_ids
    target.prefill(0, context[:-1])
    target.copy(0, 1, 12)
    target.prefill(1, context[12:-1])
    assert target.taps.lengths[1] == len(context) - 1
    [copied] = drafter.propose([ask(context, slot=1)])
    assert copied.token_ids == expected
    drafter.release(1)
    target.taps.rewind(1, 5, 0, ())
    [rebuilt] = drafter.propose([ask(context, slot=1)])
    assert rebuilt.token_ids == expected
    assert target.taps.lengths[1] == target.length(1) == len(context) - 1


@pytest.mark.parametrize("method", METHODS)
def test_long_prompt_in_pieces(method, folders):
    """More new positions than one forward takes."""
    target = tiny_target(num_slots=1, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    context = random_ids(540, seed=8)
    target.prefill(0, context[:-1])
    [draft] = drafter.propose([ask(context)])
    drafter.release(0)
    for end in (100, 300, 540):
        target.rewind(0, 0)
        target.prefill(0, context[: end - 1])
        [pieces] = drafter.propose([ask(context[:end])])
    assert pieces.token_ids == draft.token_ids


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_sizes_that_are_rounded_up_draft_the_same(method, folders, monkeypatch):
    """Few sizes of forwards, as on a CUDA device: the entries that count, and the drafts, stay a fresh prefill's."""
    target = tiny_target(num_slots=2, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    drafter._rounds, forward, sizes = True, drafter.model.forward, set()

    def seen(embedded, hidden, positions, cache, mask):
        sizes.add((embedded.shape[1], mask.shape[-1]))
        return forward(embedded, hidden, positions, cache, mask)

    monkeypatch.setattr(drafter.model, "forward", seen)
    context, done = random_ids(61, seed=9), 0
    for end in (4, 9, 11, 20, 37, 38, 61):
        target.prefill(0, context[done : end - 1])
        [draft] = drafter.propose([ask(context[:end])])
        same_as_fresh(method, folders[method], drafter, 0, context[:end], draft)
        done = end - 1
    assert sizes == {(width, 256) for width in (1, 2, 4, 8, 16, 32)}


def test_windowed_drafter_sees_its_window_alone(tmp_path):
    """Features beyond every layer's window can't change a draft; those inside do."""
    sliding = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}
    folder = write_drafter("dflash", tmp_path, block_size=BLOCK, **sliding)
    target = tiny_target(num_slots=1, invariant=False)
    drafter = drafter_of("dflash", folder, target)
    context = random_ids(40, seed=9)

    def hidden(changed_at):
        target.release(0)
        drafter.release(0)
        target.prefill(0, context[:-1])
        if changed_at is not None:
            target.taps.rows[0, changed_at] += 1.0
        drafter.propose([ask(context)])
        return drafter.block_hidden([ask(context)])[0]

    plain = hidden(None)
    # The anchor is at 39; slot 0 sees back to 32.
    torch.testing.assert_close(hidden(31), plain, atol=0, rtol=0)
    assert not torch.equal(hidden(32)[0], plain[0])


@pytest.mark.parametrize("method", METHODS)
def test_batch_equals_one_by_one(method, folders):
    target = tiny_target(num_slots=3, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    contexts = [random_ids(length, seed=length) for length in (4, 17, 9)]
    for slot, context in enumerate(contexts):
        target.prefill(slot, context[:-1])
    asked = [ask(context, slot, num_tokens=2 + slot) for slot, context in enumerate(contexts)]
    together = drafter.propose(asked)
    for slot in range(3):
        drafter.release(slot)
    alone = [drafter.propose([one])[0] for one in asked]
    assert [draft.token_ids for draft in together] == [draft.token_ids for draft in alone]
    assert [len(draft) for draft in together] == [2, 3, 4]


@pytest.mark.parametrize("method", METHODS)
def test_unread_context_drafts_nothing(method, folders):
    """The pass that prefills a prompt drafts nothing: its features don't exist yet."""
    target = tiny_target(num_slots=1, invariant=False)
    drafter = drafter_of(method, folders[method], target)
    [draft] = drafter.propose([ask(random_ids(6))])
    assert len(draft) == 0
    target.prefill(0, random_ids(9))
    with pytest.raises(ParameterError, match="one more than the 9 in slot 0"):
        drafter.propose([ask(random_ids(6))])


def test_one_token_prompt(folders):
    """The first pass plain, then drafts, from a prompt of one token."""
    target = tiny_target(num_slots=1, invariant=False)
    params = SamplingParams(temperature=0.0, max_tokens=8, detokenize=False, ignore_eos=True)
    plain = LLM.from_target(target, None).generate([[7]], params)[0].outputs[0].token_ids
    for method in METHODS:
        llm = LLM.from_target(target, None, drafter=drafter_of(method, folders[method], target),
                              speculative_config={"num_speculative_tokens": 4, "draft_length": "fixed"})  # fmt: skip
        [output] = llm.generate([[7]], params)
        assert output.outputs[0].token_ids == plain
        assert output.metrics.speculative_decoding["num_draft_tokens"] > 0
    assert issubclass(type(drafter_of("dflash", folders["dflash"], target)), BlockDrafter)


@pytest.mark.parametrize("method", METHODS)
def test_target_whose_modules_were_replaced(method, folders):
    """On a CPU a target's norms and projections are swapped for faster ones; a drafter is built all the same."""
    target = tiny_target(num_slots=1, invariant=False)
    fuse_norms(target.model)
    fuse_projections(target.model)
    pack_linears(target.model)
    drafter = drafter_of(method, folders[method], target)
    context = random_ids(12, seed=3)
    target.prefill(0, context[:-1])
    [draft] = drafter.propose([ask(context)])
    assert draft.token_ids == fresh(method, folders[method], context)[1].token_ids


@pytest.mark.skipif(not can_halve(torch.device("cpu")), reason="PyTorch has no product over float16 here")
@pytest.mark.parametrize(("in_eight_bits", "most"), [(False, 0.01), (True, 0.1)])
@pytest.mark.parametrize("method", METHODS)
def test_drafter_of_a_target_that_keeps_its_weights_in_float16(method, folders, monkeypatch, in_eight_bits, most):
    """Its products are in 8 bits, or keep theirs so too; what it caches is within rounding of float32's."""
    if not in_eight_bits:
        monkeypatch.setattr("draftproof.drafters.learned.load.takes_eight_bits", lambda *_, **__: False)
    target = tiny_target(num_slots=1, invariant=False)
    unrounded = tiny_target(num_slots=1, invariant=False)
    fuse_projections(target.model, HalfLinear)
    pack_linears(target.model, HalfLinear)
    drafter, other = drafter_of(method, folders[method], target), drafter_of(method, folders[method], unrounded)
    kinds = {type(module) for module in drafter.model.modules()}
    assert (EightBitLinear in kinds) == in_eight_bits and not {HalfLinear, EightBitLinear}.isdisjoint(kinds)
    assert target.has_halves and {type(m) for m in other.model.modules()}.isdisjoint({HalfLinear, EightBitLinear})
    context, kept = random_ids(12, seed=3), []
    for each, made in ((target, drafter), (unrounded, other)):
        each.prefill(0, context[:-1])
        [draft] = made.propose([ask(context)])
        assert len(draft) == 5
        kept.append(committed_entries(made, 0, context))
    for ours, theirs in zip(*kept, strict=True):
        assert 0 < (ours - theirs).norm() < most * theirs.norm()


def test_of_two_drafters_with_other_taps_the_first_is_told(folders, tmp_path):
    target = tiny_target(num_slots=2, invariant=False)
    first = drafter_of("dflash", folders["dflash"], target)
    same = drafter_of("dspark", folders["dspark"], target)
    assert same.context.taps is first.context.taps is target.taps
    ids = random_ids(12, seed=3)
    target.prefill(0, ids[:-1])
    for drafter in (first, same):
        [draft] = drafter.propose([ask(ids)])
        assert len(draft) == 5
    others = {"dflash_config": {"mask_token_id": VOCAB_SIZE - 1, "target_layer_ids": [2, 4]}}
    last = drafter_of("dflash", write_drafter("dflash", tmp_path, block_size=BLOCK, **others), target)
    with pytest.raises(ModelError, match=r"\[2, 4\] that this drafter reads are no longer kept"):
        first.propose([ask(ids)])
    target.rewind(0, 4)
    target.prefill(0, ids[4:-1])
    [draft] = last.propose([ask(ids)])
    assert len(draft) == 5


def test_through_the_engine_a_drafter_without_its_taps_fails_its_requests(folders, tmp_path):
    target = tiny_target(num_slots=2, invariant=False)
    config = {"method": "dflash", "model": folders["dflash"], "num_speculative_tokens": 3, "draft_length": "fixed"}
    llm = LLM.from_target(target, None, speculative_config=config)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=8, detokenize=False)
    llm.generate([random_ids(9)], params)
    drafter_of("eagle3", folders["eagle3"], target)
    with pytest.raises(GenerationFailed) as failed:
        llm.generate([random_ids(9)], params)
    assert "another drafter" in str(failed.value.outputs[0].error)
