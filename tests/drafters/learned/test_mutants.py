"""Wrong twins of the drafters' rules, each named after a public bug: what the other tests assert must fail for them.

A wrong drafter never changes the text, so these are about caches, laws and acceptance: the tests' own assertions are
run against the twin, and must not hold.
"""

import numpy as np
import pytest
import torch

from draftproof.core import Draft, PointMass
from draftproof.drafters.learned import (
    block_drafter,
    block_model,
    chain_drafter,
    context,
    drawing,
    host_block,
    load,
    markov,
    modules,
)
from draftproof.errors import DraftContractError
from tests.drafters.learned import test_context, test_laws, test_parity
from tests.drafters.learned.tiny import METHODS, tiny_target, write_drafter

one_thread = test_context.one_thread


@pytest.fixture(autouse=True)
def not_packed(monkeypatch):
    """The twins are of the modules' way; some processors would go the packed one."""
    monkeypatch.setattr(load, "product_kind", lambda *_, **__: None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    make = tmp_path_factory.mktemp
    return {m: write_drafter(m, make("drafter"), block_size=test_context.BLOCK) for m in METHODS}


def caught(check, *arguments):
    """True if the test's own body fails."""
    try:
        check(*arguments)
    except (AssertionError, RuntimeError, IndexError):
        return True
    return False


def features_one_late(self, request, start):
    """vllm#14649 (T63): the hidden state of the token after the one that was accepted last."""
    rows = FEATURES(self, request, start)
    return rows if len(rows) < 2 else torch.cat((rows[1:], rows[-1:]))


FEATURES = context.DraftContext.features


def keep_all(self, slot, context_ids, most):
    """mlxcel#994 (T58): entries of rejected or other tokens stay in the cache."""
    ids = self._ids.setdefault(slot, [])
    if len(ids) > most:
        del ids[most:]
    return len(ids)


def recycled_entries_stay(self, turns):
    """GLM's MTP in old engines: entries made from the drafter's own hidden state are kept for accepted tokens."""
    READ(self, turns)
    for turn in turns:
        self.context.extend(turn.request.slot, [0])


READ = chain_drafter.ChainDrafter._read_context


@pytest.mark.parametrize("method", METHODS)
def test_hidden_state_index(monkeypatch, folders, method):
    monkeypatch.setattr(context.DraftContext, "features", features_one_late)
    target = tiny_target(num_slots=2, invariant=False)
    drafter = test_context.drafter_of(method, folders[method], target)
    tokens = test_context.random_ids(9, seed=1)
    target.prefill(0, tokens[:-1])
    [wrong] = drafter.propose([test_context.ask(tokens)])
    monkeypatch.undo()
    drafter.release(0)
    [right] = drafter.propose([test_context.ask(tokens)])
    # The laws differ, whatever the tokens.
    assert any(not np.array_equal(_probs(a), _probs(b)) for a, b in zip(wrong.laws, right.laws, strict=False))


def _probs(law):
    return np.asarray(law.at(None, 64), dtype=float)


@pytest.mark.parametrize("method", METHODS)
def test_another_requests_entries(monkeypatch, folders, method):
    """llama.cpp#22105: state that `begin()` doesn't reset."""
    monkeypatch.setattr(context.DraftContext, "keep_common", keep_all)
    assert caught(test_context.test_slot_reuse_without_release, method, folders)


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_recycled_entries_kept(monkeypatch, folders, method):
    monkeypatch.setattr(chain_drafter.ChainDrafter, "_read_context", recycled_entries_stay)
    monkeypatch.setattr(context.DraftContext, "keep_common", keep_all)
    assert caught(test_context.test_t58_t63_every_accept_length, method, 3, folders)


def test_features_left_out(monkeypatch, folders):
    """A copied prefix without its features: the draft is made from what is left of the context."""

    def short(self, request, start):
        stop = min(len(request.context_ids) - 1, self.taps.lengths[request.slot])
        return self.taps.read(request.slot, min(start, stop), stop)

    monkeypatch.setattr(context.DraftContext, "features", short)
    assert caught(test_context.test_copied_prefix_and_lost_features, "dflash", folders)


def test_window_ignored(monkeypatch, tmp_path):
    """A windowed drafter that runs over its whole context."""
    mask = block_model.block_mask

    def unbounded(starts, widths, key_length, window, causal, dtype):
        return mask(starts, widths, key_length, None, causal, dtype)

    monkeypatch.setattr(block_drafter, "block_mask", unbounded)
    assert caught(test_context.test_windowed_drafter_sees_its_window_alone, tmp_path)


def test_mask_in_the_anchors_place(monkeypatch, tmp_path):
    """hipfire: the mask's embedding in slot 0 gave accept length 1.46 in place of 6.34."""
    embed = block_model.BlockModel.embed

    def masked(self, table, token_ids):
        return embed(self, table, torch.full_like(token_ids, self.layout.mask_token_id))

    monkeypatch.setattr(block_model.BlockModel, "embed", masked)
    assert caught(test_parity.test_parity, "zlab_v1", False, tmp_path)


def test_slots_that_only_a_neighbour_needs(monkeypatch, folders):
    """A row's block as wide as the widest of the batch: what it drafts would depend on its neighbours."""
    mask = block_model.block_mask

    def widest(starts, widths, *rest):
        return mask(starts, torch.full_like(widths, int(widths.max())), *rest)

    monkeypatch.setattr(block_drafter, "block_mask", widest)
    assert caught(test_context.test_batch_equals_one_by_one, "dspark", folders)


def test_causal_where_it_is_bidirectional(monkeypatch, tmp_path):
    mask = block_model.block_mask

    def causal(starts, widths, key_length, window, _, dtype):
        return mask(starts, widths, key_length, window, True, dtype)

    monkeypatch.setattr(block_drafter, "block_mask", causal)
    # A single block that sees everything has no mask.
    assert caught(test_parity.test_parity, "zlab_v1", True, tmp_path)


def test_context_keys_that_are_not_rotated(monkeypatch, tmp_path):
    """The packed way: keys of the context as if all stood at position 0."""
    turns = host_block.HostBlock._turns

    def still(self, rotation, heads):
        cosines, sines = rotation
        if heads.start is not None:
            rotation = torch.ones_like(cosines), torch.zeros_like(sines)
        return turns(self, rotation, heads)

    monkeypatch.setattr(host_block.HostBlock, "_turns", still)
    assert caught(test_parity.test_parity_of_packed_products, "zlab_v1", False, tmp_path)
    monkeypatch.undo()
    assert not caught(test_parity.test_parity_of_packed_products, "zlab_v1", False, tmp_path)


def test_rotary_pairs_as_neighbours(monkeypatch, tmp_path):
    """Interleaved rotary embedding where halves are meant."""
    rotate = modules.rotate
    monkeypatch.setattr(modules, "rotate", lambda heads, rotation, _=False: rotate(heads, rotation, True))
    assert caught(test_parity.test_parity, "zlab_v1", False, tmp_path)


def test_markov_state_not_carried(monkeypatch, tmp_path):
    step = markov.MarkovHead.step

    def forgets(self, embedded, hidden, state):
        return step(self, embedded, hidden, torch.zeros_like(state))

    monkeypatch.setattr(markov.MarkovHead, "step", forgets)
    assert caught(test_parity.test_parity, "specforge_dspark_rnn", False, tmp_path)


def test_recycled_before_the_norm(monkeypatch, tmp_path):
    """Old vLLM recycled MTP's hidden state before its norm: 3.725 accepted tokens became 1.753."""
    from draftproof.drafters.learned import mtp

    forward = mtp.MTPModel.forward

    def raw(self, *arguments):
        _, outputs = forward(self, *arguments)
        return outputs * 2.0, outputs

    monkeypatch.setattr(mtp.MTPModel, "forward", raw)
    # hnorm takes a factor out again; a shift it doesn't.
    monkeypatch.setattr(mtp.MTPModel, "forward", lambda self, *a: ((o := forward(self, *a)[1]) + 1.0, o))
    assert caught(test_parity.test_parity, "speculators_mtp", False, tmp_path)


def test_offsets_read_as_ids(monkeypatch, tmp_path):
    """d2t holds offsets; read as ids, a draft token stands for another one (T64)."""
    from draftproof.drafters.learned import vocab

    def identity(checkpoint, draft_vocab_size, vocab_size):
        return vocab.VocabMap(torch.arange(draft_vocab_size), vocab_size, "here")

    monkeypatch.setattr(vocab.VocabMap, "read", identity)
    assert caught(test_parity.test_parity, "speculators_dspark", False, tmp_path)


def test_truncation_that_looks(folders):
    """Appendix A of DSpark: a token that is dropped for what it is. The draft says so, and ratio tests refuse it."""
    from draftproof.verify import get_verifier

    target = tiny_target(num_slots=1, invariant=False)
    drafter = test_context.drafter_of("dspark", folders["dspark"], target)
    tokens = test_context.random_ids(9, seed=1)
    target.prefill(0, tokens[:-1])
    [draft] = drafter.propose([test_laws.ask(target, tokens, share=False, num_tokens=4)])
    looked = draft.truncated(2, looked_at_dropped=True)
    with pytest.raises(DraftContractError):
        get_verifier("rejection").verify(looked, [PointMass(1)] * 3, test_laws.KeyedNoise(1))


def test_argmax_under_a_ratio_test(monkeypatch, folders):
    """ds4 #482: the drafter takes the argmax, the verifier is handed q. `Draft.draw` makes it a point mass."""
    monkeypatch.setattr(drawing.Drawing, "draw", lambda self, draft, law, request: draft.draw(
        PointMass(law.argmax()), request.noise))  # fmt: skip
    target = tiny_target(num_slots=1, invariant=False)
    assert caught(test_laws.test_law_types, target, folders, "mtp")
    assert isinstance(Draft.empty(0).draw(PointMass(3), test_laws.KeyedNoise(1)).laws[0], PointMass)
