"""Trees that are grown in one call: the same as in rounds, over the same noise; and where that can't be done."""

import numpy as np
import pytest
import torch

from draftproof.core import Key, Purpose
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned import block_source, grown
from draftproof.drafters.learned.load import load_block_drafter
from draftproof.drafters.tree import BestFirst, Shares, TreeDrafter, source_of
from draftproof.drafters.tree import drafter as tree_drafter
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.targets.base import ScoreRequest
from tests.drafters.learned.tiny import VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.threads import one_thread

grow = grown.growing()
needs_numba = pytest.mark.skipif(grow is None, reason="needs numba")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
CASES = [
    (temperature, Shares(weight, sharpness), budget)
    for temperature in (0.0, 0.8, 1.0)
    for weight in (0.0, 0.5, 0.8, 1.0)
    for sharpness in (1.0, 0.7)
    for budget in (1, 5, 24)
]


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture
def drafter(tmp_path):
    target = tiny_target(num_slots=1, invariant=False)
    made = load_block_drafter(write_drafter("dspark", tmp_path), target, SamplerChain(), method=config_method("dspark"))
    target.score([ScoreRequest(0, tuple(PROMPT[:-1]))])
    return made


def draft_of(drafter, temperature: float, shares: Shares, budget: int, seed: int = 1):
    row = resolve(SamplingParams(temperature=temperature), None, VOCAB_SIZE)
    request = DraftRequest(0, PROMPT, budget, KeyedNoise(seed, seed % 3), True, row, History(PROMPT))
    trees = TreeDrafter(source_of(drafter), BestFirst(max_depth=8, num_children=6), shares)
    [draft] = trees.propose([request])
    return [*draft.token_ids], [*draft.parents], trees._drafted[0].log_weights


def check_trees(drafter, monkeypatch) -> None:
    """One call gives the tree that rounds give."""
    num_deep = 0
    for turn, case in enumerate(CASES):
        found = draft_of(drafter, *case, seed=turn + (turn << 40))
        with monkeypatch.context() as patch:
            patch.setattr(block_source, "growing", lambda: None)
            wanted = draft_of(drafter, *case, seed=turn + (turn << 40))
        assert found[:2] == wanted[:2], case
        assert np.allclose(found[2], wanted[2], atol=2e-5)
        num_deep += len(set(found[1])) > 2
    assert num_deep > len(CASES) / 4


@needs_numba
def test_a_tree_is_that_of_rounds(drafter, monkeypatch) -> None:
    check_trees(drafter, monkeypatch)


@needs_numba
@pytest.mark.parametrize("name", ["noise of the next position", "another seed", "another sample"])
def test_other_noise_shows(drafter, monkeypatch, name: str) -> None:
    def other(scores, position):
        weight, position, sample, low, high = grown.noise_of(scores, position)
        if name == "noise of the next position":
            position += 1
        return weight, position, sample + (name == "another sample"), low, high ^ (name == "another seed")

    monkeypatch.setattr(block_source, "noise_of", other)
    with pytest.raises(AssertionError):
        check_trees(drafter, monkeypatch)


@needs_numba
def test_a_request_that_cuts_its_trees_gets_two_slots_more_than_they_go_deep(drafter, monkeypatch) -> None:
    num_kept, widths = [1], []

    class Told:
        is_probe = False

        def num_worth(self, survival):
            return min(len(survival), num_kept[0])

        def least_survivals(self, num):
            return np.full(num, 1e-300)

    block_hidden = drafter.block_hidden

    def recorded(requests, given=None):
        widths.append(given[0] - drafter.layout.first_slot)
        return block_hidden(requests, given)

    monkeypatch.setattr(drafter, "block_hidden", recorded)
    monkeypatch.setattr(tree_drafter, "LEAST_WORTH", -np.inf)
    row = resolve(SamplingParams(temperature=0.8), None, VOCAB_SIZE)
    request = DraftRequest(0, PROMPT, 6, KeyedNoise(1), True, row, History(PROMPT), anticipating=Told())
    trees = TreeDrafter(source_of(drafter), BestFirst(8, 2, num_children=1), Shares(0.0))
    for _ in range(40):
        trees.propose([request])
    assert widths[0] == 6 and sorted(widths, reverse=True) == widths and widths[-1] == 3
    num_kept[0] = 6
    for _ in range(6):
        trees.propose([request])
    assert widths[-1] == 6


@needs_numba
def test_it_is_compiled_once_whatever_is_asked(drafter) -> None:
    before = list(grow.signatures)
    for case in CASES:
        draft_of(drafter, *case)
    assert grow.signatures == before and len(before) == 1


@needs_numba
def test_its_noise_is_the_targets() -> None:
    from draftproof.drafters.learned.grown_code import exponential_of, field_word

    for seed, sample, position in ((1, 0, 0), (2**64 - 1, 5, 77), (0x123456789ABCDEF0, 2**32 - 1, 131_071)):
        noise = KeyedNoise(seed, sample)
        key = seed & 0xFFFFFFFF, seed >> 32
        ids = np.array([0, 1, 2, 3, 4, 5, 1023, 49_151, 200_003])
        words = noise.field_at(Key(Purpose.TARGET, position), ids)
        assert [int(field_word(token, position, sample, *key)) for token in ids.tolist()] == words.tolist()
        exact = -np.log1p(-(words.astype(np.float64) + 0.5) * 2.0**-32)
        assert np.allclose([exponential_of(token, position, sample, *key) for token in ids], exact, rtol=1e-6)


@needs_numba
@pytest.mark.parametrize("weight", [0.0, 0.8, 1.0])
def test_a_list_has_the_tokens_that_weigh_most(weight: float) -> None:
    """Of 4,096 tokens the 32 largest weights, times the noise's power."""
    from draftproof.drafters.learned.grown_code import make_list

    size, length, position, scale = 4096, 32, 9, 1 / 0.7
    logits = (np.random.default_rng(3).normal(size=size) * 2).astype(np.float32)
    ids, rows = np.arange(size) * 3 + 1, np.random.default_rng(4).normal(size=(size, 5)).astype(np.float32)
    kept, scores = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.float32)
    powers, own_rows = np.zeros(length), np.zeros((length, 5), dtype=np.float32)
    for seed in range(5):
        noise = KeyedNoise(seed)
        words = noise.field_at(Key(Purpose.TARGET, position), ids).astype(np.float64)
        factors = (-np.log1p(-(words + 0.5) * 2.0**-32)) ** -weight
        weights = np.exp((logits.astype(np.float64) - logits.max()) * scale) * factors
        weights[logits < logits.max() - 10.0 / scale] = 0.0
        wanted = np.sort(np.argsort(-weights)[:length])
        told = (weight, position, 0, seed, 0)
        scratch = np.zeros(size + 1, dtype=np.int32)
        assert make_list(logits, ids, rows, scale, 10.0, told, scratch, kept, scores, powers, own_rows) == length
        assert kept.tolist() == ids[wanted].tolist()
        assert np.allclose(scores, (logits[wanted] - logits.max()) * scale, rtol=1e-5, atol=1e-5)
        assert np.allclose(powers, factors[wanted], rtol=1e-5) and np.array_equal(own_rows, rows[wanted])


def test_noise_that_is_no_keyed_stream_is_not_told() -> None:
    class Other(KeyedNoise):
        pass

    from draftproof.drafters.tree.scores import NoiseScores

    scores = NoiseScores(Other(1), noise_weight=1.0, num_children=4)
    assert grown.noise_of(scores, 7) is None
    assert grown.noise_of(NoiseScores(Other(1), noise_weight=0.0, num_children=4), 7) == (0.0, 0, 0, 0, 0)
    told = grown.noise_of(NoiseScores(KeyedNoise(2**33 + 5, 2), noise_weight=0.5, num_children=4), 7)
    assert told == (0.5, 7, 2, 5, 2)


@needs_numba
def test_without_numba_or_where_it_refuses_trees_grow_in_rounds(drafter, monkeypatch) -> None:
    import draftproof.drafters.learned.grown_code as code

    def refuses(*_):
        raise TypeError("no such signature")

    wanted = draft_of(drafter, *CASES[-1])
    with monkeypatch.context() as patch:
        patch.setattr(code, "grow", refuses)
        with pytest.warns(RuntimeWarning, match="grown in rounds, since numba refuses: no such signature"):
            assert grown.growing.__wrapped__() is None
    monkeypatch.setitem(__import__("sys").modules, "draftproof.drafters.learned.grown_code", None)
    assert grown.growing.__wrapped__() is None
    monkeypatch.setattr(block_source, "growing", lambda: None)
    assert draft_of(drafter, *CASES[-1])[:2] == wanted[:2]
    assert torch.get_num_threads() == 1
