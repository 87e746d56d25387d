"""Laws over lists of likely tokens: what they leave out, and where there are none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof.core import ROOT, Key, PointMass, Purpose
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned import block_source, short_lists
from draftproof.drafters.learned.eight_bit import EightBitLinear
from draftproof.drafters.learned.load import load_block_drafter
from draftproof.drafters.learned.markov import MarkovHead
from draftproof.drafters.learned.short_lists import Bias, ShortLists
from draftproof.drafters.tree import BestFirst, Shares, TreeDrafter, source_of
from draftproof.drafters.tree.growing import Growing
from draftproof.drafters.tree.scores import NoiseScores
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.dtype import cpu_flags
from tests.drafters.learned.tiny import VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.threads import one_thread

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NUM_SLOTS, SIZE, RANK = 3, 40, 4
IDS = np.arange(SIZE) * 2 + 1


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture
def head() -> MarkovHead:
    generator = torch.Generator().manual_seed(1)
    head = MarkovHead("vanilla", 2 * SIZE + 2, SIZE, RANK, 8)
    for weight in head.parameters():
        weight.requires_grad_(False).copy_(torch.randn(weight.shape, generator=generator))
    return head


def logits() -> np.ndarray:
    return np.random.default_rng(2).normal(size=(NUM_SLOTS, SIZE)).astype(np.float32) * 2


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def biases(head: MarkovHead, token_id: int) -> np.ndarray:
    return head.markov_w2(head.embed(torch.tensor([token_id])))[0].numpy()


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_a_list_of_all_tokens_gives_the_law(monkeypatch, head, temperature: float) -> None:
    monkeypatch.setattr(short_lists, "REACH", 99.0)
    lists = ShortLists(logits(), IDS, temperature, Bias(head), lambda *_: None)
    expected = softmax((logits()[0] + biases(head, 7)) / temperature)
    assert np.allclose(lists.root(7).at(IDS, SIZE), expected, atol=1e-6)
    for slot in (1, 2):
        for token_id, law in zip((5, 9), lists.after(slot, [5, 9]), strict=True):
            expected = softmax((logits()[slot] + biases(head, token_id)) / temperature)
            assert np.allclose(law.at(IDS, SIZE), expected, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_what_is_out_of_reach_is_no_candidate_and_counts_all_the_same(monkeypatch, head, temperature: float) -> None:
    monkeypatch.setattr(short_lists, "REACH", 3.0)
    lists, left_out = ShortLists(logits(), IDS, temperature, Bias(head), lambda *_: None), 0
    for slot in range(NUM_SLOTS):
        [law] = [lists.root(7)] if slot == 0 else lists.after(slot, [7])
        biased = (logits()[slot] + biases(head, 7)) / temperature
        reached = biased if slot == 0 else logits()[slot] / temperature
        kept = reached > reached.max() - 3.0
        total = np.exp(biased[kept]).sum() + np.exp(reached[~kept]).sum()
        assert np.allclose(law.at(IDS, SIZE), np.where(kept, np.exp(biased) / total, 0.0), rtol=1e-4)
        left_out += int((~kept).sum())
    assert left_out > SIZE


@pytest.mark.parametrize("looks", [False, True])
def test_a_list_keeps_the_largest_weights_and_counts_the_others_without_a_bias(monkeypatch, head, looks: bool) -> None:
    monkeypatch.setattr(short_lists, "LENGTH", 6)
    monkeypatch.setattr(short_lists, "REACH", 6.0)
    powers = np.random.default_rng(3).exponential(size=(NUM_SLOTS, SIZE)).astype(np.float32)
    asked = []

    def likely(slot: int) -> np.ndarray:
        return np.flatnonzero(logits()[slot] > logits()[slot].max() - 6.0)

    def look(slot: int, ids: np.ndarray) -> np.ndarray | None:
        asked.append(slot)
        assert ids.tolist() == IDS[likely(slot)].tolist()
        return powers[slot][likely(slot)] if looks else None

    lists = ShortLists(logits(), IDS, 1.0, Bias(head), look)
    for slot in (1, 2, 1):
        weights = np.exp(logits()[slot].astype(np.float64))
        raced = weights * (powers[slot] if looks else 1.0)
        raced[np.delete(np.arange(SIZE), likely(slot))] = 0.0
        places = np.sort(np.argsort(-raced)[:6])
        for token_id, law in zip((5, 9), lists.after(slot, [5, 9]), strict=True):
            biased = weights * np.exp(biases(head, token_id))
            total = biased[places].sum() + np.delete(weights, places).sum()
            probs, ids = law.weights()
            assert ids is not None and ids.tolist() == IDS[places].tolist()
            assert np.allclose(probs, biased[places] / total, rtol=1e-4)
    # The noise is looked at once for each slot.
    assert asked == [1, 2]


def test_what_8_bits_stand_for_is_read(head) -> None:
    try:
        packed = EightBitLinear(head.markov_w2.weight, None)
    except (AttributeError, RuntimeError):
        pytest.skip("no products in 8 bits here")
    rows = Bias(head).rows
    head.markov_w2 = packed
    scales = rows.abs().amax(dim=1, keepdim=True) / (127 if "avx512_vnni" in cpu_flags() else 63)
    assert (Bias(head).rows - rows).abs().max() > 0
    assert bool(((Bias(head).rows - rows).abs() <= 0.51 * scales).all())


def test_what_is_packed_is_read(head) -> None:
    rows = Bias(head).rows
    head.markov_w2 = PackedLinear(head.markov_w2.weight, None)
    assert torch.equal(Bias(head).rows, rows)


THREADS = """
import os
from pathlib import Path
def threads():
    return {path.name: sum(map(int, path.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]))
            for path in Path("/proc/self/task").iterdir()}
import numpy as np
numpys = set(threads()) - {str(os.getpid())}
import torch
from draftproof.drafters.learned.short_lists import Bias, ShortLists
from draftproof.drafters.learned.markov import MarkovHead
size = 20_000
bias = Bias(MarkovHead("vanilla", size, size, 256, 64).requires_grad_(False))
lists = ShortLists(np.zeros((3, size), dtype=np.float32), np.arange(size), 1.0, bias, lambda *_: None)
def use():
    for _ in range(20):
        lists.root(7)
        lists.after(1, list(range(64)))
    return sum(ticks for name, ticks in threads().items() if name in numpys)
before = use()
print(len(numpys), use() - before)
left, right = np.ones((4000, 256), dtype=np.float32), np.ones((256, 400), dtype=np.float32)
for _ in range(100):
    left @ right
print(sum(ticks for name, ticks in threads().items() if name in numpys) > before)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2 or not Path("/proc/self/task").exists(), reason="needs threads to watch")
def test_no_product_of_numpys_takes_a_processor_from_the_targets() -> None:
    """NumPy's threads spin for some 50 ms after a product: a pass over a tree took 112 ms with them, 35 without."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    run = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found, shows = run.stdout.splitlines()
    count, ticks = map(int, found.split())
    if count == 0:
        pytest.skip("NumPy has no threads here")
    assert shows == "True" and ticks == 0


def made(folder, method: str = "dspark", params: SamplingParams | None = None, **changes):
    target = tiny_target(num_slots=1, invariant=False)
    path = write_drafter(method, folder, **changes)
    drafter = load_block_drafter(path, target, SamplerChain(), method=config_method(method))
    target.score([ScoreRequest(0, tuple(PROMPT[:-1]))])
    row = resolve(params or SamplingParams(temperature=0.8), None, VOCAB_SIZE)
    return drafter, DraftRequest(0, PROMPT, 6, KeyedNoise(1), True, row, History(PROMPT))


def laws_of(drafter, request: DraftRequest, *, looks: bool) -> list:
    """After the context, and after two nodes and a child of the second."""
    source = source_of(drafter)
    if looks:
        source.look = lambda *_: None
    tree = Growing(request)
    [root] = source.root_laws([request])
    tree.add(ROOT, np.array([2, 7]), np.zeros(2), root)
    tree.expand([0, 1])
    [after] = source.laws_after([tree], [2])
    tree.add(1, np.array([11]), np.zeros(1), after[1])
    tree.expand([2])
    [(last,)] = source.laws_after([tree], [1])
    assert (source._blocks[0].lists is not None) == (looks and drafter.model.markov_head is not None)
    return [root, *after, last]


@pytest.mark.parametrize("packs", [False, True])
def test_a_tree_that_only_ranks_has_the_laws_of_others(tmp_path, monkeypatch, packs: bool) -> None:
    """The tiny model has fewer tokens than a list. Drafters pack their products on CPUs without AVX-512."""
    monkeypatch.setattr(
        "draftproof.drafters.learned.load.product_kind", lambda *_, **__: PackedLinear if packs else None
    )
    drafter, request = made(tmp_path)
    assert (type(drafter.model.markov_head.markov_w2) is PackedLinear) == packs
    assert short_lists.LENGTH >= VOCAB_SIZE
    for law, expected in zip(
        laws_of(drafter, request, looks=True), laws_of(drafter, request, looks=False), strict=True
    ):
        assert np.allclose(law.at(None, VOCAB_SIZE), expected.at(None, VOCAB_SIZE), atol=1e-5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=0.8, top_k=5),
        SamplingParams(temperature=0.8, presence_penalty=0.5),
        SamplingParams(temperature=0.8, logit_bias={3: 1.0}),
        SamplingParams(temperature=0.8, allowed_token_ids=[1, 2, 3]),
        SamplingParams(temperature=0.0),
    ],
)
def test_where_a_law_is_more_than_a_softmax_there_are_no_lists(tmp_path, params: SamplingParams) -> None:
    drafter, request = made(tmp_path, params=params)
    source = source_of(drafter)
    source.look = lambda *_: None
    [law] = source.root_laws([request])
    assert source._blocks[0].lists is None and law is not None


def test_laws_that_are_more_than_ranks_are_whole(tmp_path, monkeypatch) -> None:
    """A builder of drawn siblings doesn't look; one that ranks does, at its tree's positions."""
    monkeypatch.setattr(block_source, "growing", lambda: None)
    drafter, request = made(tmp_path)
    assert source_of(drafter).look is None
    source = source_of(drafter)
    tree = TreeDrafter(source, BestFirst(8, 32), Shares(1.0))
    assert source.look is not None
    seen = []
    look = source.look
    source.look = lambda slot, position, ids: (seen.append((slot, position)), look(slot, position, ids))[1]
    [draft] = tree.propose([request])
    assert len(draft) and all(isinstance(law, PointMass) for law in draft.laws)
    assert {slot for slot, _ in seen} == {0}
    assert {position for _, position in seen} <= set(range(len(PROMPT) + 1, len(PROMPT) + 8)) and seen


def test_powers_at_some_tokens_are_those_of_the_field_and_computed_once() -> None:
    noise, asked = KeyedNoise(5), []

    class Counted(KeyedNoise):
        def field_at(self, key, token_ids):
            asked.extend(token_ids.tolist())
            return super().field_at(key, token_ids)

    scores = NoiseScores(Counted(5), noise_weight=0.8, num_children=4)
    arrays = [np.array([1, 5, 30]), np.array([2, 5]), np.array([7]), np.array([9, 11]), np.array([3, 44])]
    for ids in (*arrays, *arrays):
        words = noise.field(Key(Purpose.TARGET, 12), 48)[ids]
        np.testing.assert_allclose(scores.powers_at(12, ids), scores._raised(words), rtol=1e-6)
    assert sorted(asked) == [1, 2, 3, 5, 7, 9, 11, 30, 44]
    assert scores.powers_at(12, arrays[0]) is scores.powers_at(12, arrays[0])
    asked.clear()
    scores.forget_before(13)
    scores.powers_at(13, arrays[0])
    scores.powers_at(12, arrays[0])
    assert asked == [1, 5, 30, 1, 5, 30]
