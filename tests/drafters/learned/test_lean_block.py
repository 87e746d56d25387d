"""Blocks run over the cache where it lies: hidden states and keys of the modules' own way."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned import lean_block, load
from draftproof.drafters.learned.following import follows
from draftproof.drafters.learned.following_block import FollowingBlock
from draftproof.drafters.learned.lean_block import LeanBlock
from draftproof.drafters.learned.load import load_block_drafter
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.targets.norms import Norm
from draftproof.targets.static import reference
from draftproof.targets.static.attention import Attention
from draftproof.targets.static.following import ChainTables
from draftproof.targets.static.operations import KernelOperations
from draftproof.targets.static.tables import Kind
from tests.drafters.learned.tiny import VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.targets.models import random_ids
from tests.threads import one_thread

BLOCK = 6
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
CHANGES = {
    "plain": {},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "causal": {"is_causal": True},
    "sliding, causal": SLIDING,
    "sliding, both ways": SLIDING | {"is_causal": False},
}
# Two ways of adding up the same float32 sums, a few layers deep, values of some units.
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def on_one_thread(guarded, monkeypatch):
    # Blocks over the cache read the modules' weights, which are packed on some processors.
    monkeypatch.setattr(load, "product_kind", lambda *_, **__: None)
    with one_thread():
        yield


def drafter_of(folder, method="dflash", **changes):
    write_drafter(method, folder, block_size=BLOCK, **changes)
    if changes.get("mlp_bias"):
        add_biases(folder / "model.safetensors")
    return load_block_drafter(str(folder), tiny_target(num_slots=4), SamplerChain(), method=method)


def requests_of(contexts):
    params = SamplerChain().resolve(SamplingParams(temperature=1.0), None, VOCAB_SIZE)
    return [
        DraftRequest(slot, list(ids), BLOCK - 1, KeyedNoise(4), True, params, History(ids))
        for slot, ids in contexts.items()
    ]


def check_block(folder, change):
    """Hidden states and keys as the modules make them, for requests at other places of the batch than their slots."""
    drafter = drafter_of(folder, **CHANGES[change])
    assert follows(drafter)
    contexts = {2: random_ids(9, seed=1), 0: random_ids(31, seed=2), 3: random_ids(4, seed=3)}
    requests = requests_of(contexts)
    for slot, ids in contexts.items():
        drafter.target.prefill(slot, ids[:-1])
    drafter.cache_context(requests)
    expected = drafter.block_hidden(requests)
    keys = [drafter.cache.entries(slot, len(ids) - 1)[0].clone() for slot, ids in contexts.items()]
    block = FollowingBlock(drafter, num_requests=3, num_drafts=BLOCK - 1, num_keys=64)
    starts = torch.tensor([len(ids) - 1 for ids in contexts.values()], dtype=torch.int32)
    # The last entries of each context are made again, from the features.
    fed = (starts - 2).clamp(min=0)
    for request, start in zip(requests, fed.tolist(), strict=True):
        drafter.cache.keys[:, :, request.slot, start:] = drafter.cache.values[:, :, request.slot, start:] = 7.0
    block.use(list(contexts))
    is_real = torch.ones(3).bool()
    block._extend(fed, is_real)
    block._ids[:, 0] = torch.tensor([ids[-1] for ids in contexts.values()])
    found = block._block.hidden(block._slots, starts, block._ids, drafter.ends.table, is_real)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    for (slot, ids), own in zip(contexts.items(), keys, strict=True):
        torch.testing.assert_close(drafter.cache.entries(slot, len(ids) - 1)[0], own, rtol=0, atol=TOLERANCE)
    # The modules' weights are views of the joined ones now: they say what they said.
    drafter.context.release(2)
    drafter.cache_context(requests)
    torch.testing.assert_close(drafter.block_hidden(requests), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_hidden_states_and_keys_are_the_modules(tmp_path, change, kernels, monkeypatch):
    if kernels:
        pytest.importorskip("triton")
        monkeypatch.setattr(lean_block, "operations_for", lambda _: KernelOperations())
        monkeypatch.setattr(Attention, "__call__", Attention.launch)
    check_block(tmp_path, change)


def see_no_later_slot(patch):
    fill = ChainTables.fill

    def chained(tables, *given):
        fill(tables, *given)
        tables._rows[:, 4] -= 1

    patch.setattr(ChainTables, "fill", chained)


def read_anothers_cache(patch):
    fill = ChainTables.fill
    patch.setattr(
        ChainTables, "fill", lambda tables, ids, starts, offsets, real: fill(tables, ids, starts, offsets.flip(0), real)
    )


def forget_the_window(patch):
    attend = reference.attend
    patch.setattr(reference, "attend", lambda *given: attend(*given[:5], None))


def see_later_slots(patch):
    patch.setattr(lean_block, "Kind", SimpleNamespace(CHAIN=Kind.BLOCK, BLOCK=Kind.BLOCK))


def leave_the_features_as_they_are(patch):
    extend = LeanBlock.extend

    def unnormed(block, *given):
        block._hidden_norm = Norm(torch.ones_like(block._hidden_norm.weight), block._hidden_norm.eps)
        extend(block, *given)

    patch.setattr(LeanBlock, "extend", unnormed)


def write_one_place_later(patch):
    extend = LeanBlock.extend
    patch.setattr(
        LeanBlock, "extend", lambda block, slots, positions, *rest: extend(block, slots, positions + 1, *rest)
    )


MUTANTS = {
    see_no_later_slot: "plain",
    read_anothers_cache: "plain",
    leave_the_features_as_they_are: "plain",
    write_one_place_later: "plain",
    see_later_slots: "causal",
    forget_the_window: "sliding, both ways",
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_caught(tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_block(tmp_path, MUTANTS[mutant])


def test_weights_are_joined_once(tmp_path):
    drafter = drafter_of(tmp_path)
    for _ in range(2):
        FollowingBlock(drafter, num_requests=1, num_drafts=BLOCK - 1, num_keys=64)
        places = {name: parameter.data_ptr() for name, parameter in drafter.model.named_parameters()}
    FollowingBlock(drafter, num_requests=2, num_drafts=BLOCK - 1, num_keys=64)
    assert places == {name: parameter.data_ptr() for name, parameter in drafter.model.named_parameters()}


def test_layers_of_another_kind_are_left_to_the_modules(tmp_path):
    drafter = drafter_of(tmp_path / "a")
    assert follows(drafter)
    for change in ({"gated": True}, {"norm_offset": True}, {"interleaved": True}):
        backbone = drafter.model.backbone
        drafter.model.backbone = replace(backbone, layer=replace(backbone.layer, **change))
        assert not follows(drafter)
        drafter.model.backbone = backbone
    drafter.model.layout = replace(drafter.model.layout, conv_kernel_size=2)
    assert not follows(drafter)
    assert not follows(drafter_of(tmp_path / "b", partial_rotary_factor=0.5))


def test_a_reduced_vocabulary_is_drawn_from_the_whole_field(tmp_path):
    """What the chain's laws of the expanded logits give, slot by slot."""
    write_drafter("dspark half", tmp_path, block_size=BLOCK)
    config = json.loads(Path(tmp_path / "config.json").read_text())
    assert config["draft_vocab_size"] == VOCAB_SIZE // 2
    drafter = load_block_drafter(str(tmp_path), tiny_target(num_slots=2), SamplerChain(), method="dspark")
    assert follows(drafter)
    ids = random_ids(12, seed=5)
    [request] = requests_of({0: ids})
    drafter.target.prefill(0, ids[:-1])
    [draft] = drafter.propose([request])
    block = FollowingBlock(drafter, num_requests=1, num_drafts=BLOCK - 1, num_keys=64)
    seen = []

    def draw(logits, first):
        row = logits[0, 0, :VOCAB_SIZE]
        seen.append(row.isfinite().nonzero().flatten().tolist())
        return torch.tensor([[draft.token_ids[first]]])

    newest, start = torch.tensor([ids[-1]]), torch.tensor([len(ids) - 1], dtype=torch.int32)
    found = block(newest, start, start, torch.zeros(1).long(), newest[:, None], draw)
    assert found[0].tolist() == list(draft.token_ids)
    assert all(tokens == list(range(0, VOCAB_SIZE, 2)) for tokens in seen)


def add_biases(path):
    tensors, generator = load_file(path), torch.Generator().manual_seed(8)
    for name, weight in list(tensors.items()):
        if "_proj.weight" in name:
            tensors[name.replace("weight", "bias")] = torch.randn(len(weight), generator=generator)
    save_file(tensors, path)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["dflash", "dspark half"])
def test_the_output_layer_is_read_once_for_all_requests(tmp_path, method):
    """Slots of a block are no contiguous tensor, of which a product of matrices would be made for each request."""
    write_drafter(method, tmp_path, block_size=BLOCK)
    target = tiny_target(num_slots=4)
    drafter = load_block_drafter(str(tmp_path), target, SamplerChain(), method=config_method(method))
    hidden = torch.randn(3, BLOCK, 32, generator=torch.Generator().manual_seed(1))
    with Seen() as seen:
        found = drafter.ends.logits(hidden[:, 1:])
    assert seen.names.count("mm") == 1 and "bmm" not in seen.names
    one_by_one = torch.stack([drafter.ends.logits(hidden[:, slot]) for slot in range(1, BLOCK)], dim=1)
    torch.testing.assert_close(found, one_by_one, rtol=0, atol=TOLERANCE)
