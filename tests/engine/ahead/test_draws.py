"""Draws by the kernels, on Triton's interpreter here, and by their rule in plain PyTorch: the same tokens."""

from functools import reduce

import pytest
import torch

from draftproof import SamplingParams
from draftproof.core import Key, Purpose
from draftproof.engine.ahead.draws import Draws
from draftproof.engine.ahead.kinds import kinds_of, widened
from draftproof.kernels import Requests
from draftproof.noise import KeyedNoise
from draftproof.sampling import History, SamplerChain

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf

VOCAB, DRAFTS = 37, 3
KINDS = {
    "raced": [SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(temperature=0)],
    "top-p": [SamplingParams(top_p=0.8), SamplingParams(), SamplingParams(temperature=0)],
    "lists": [SamplingParams(top_k=5, top_p=0.9), SamplingParams(min_p=0.1), SamplingParams(top_p=0.7)],
}
SEEDS, SAMPLES = [3, 2**63 + 5, 11], [0, 1, 7]
STARTS = torch.tensor([4, 19, 300], dtype=torch.int32)


def draws_of(params, *, kernels, kinds=None):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draws = Draws(params, SEEDS, SAMPLES, num_drafts=DRAFTS, vocab_size=VOCAB, device=device, kinds=kinds)
    draws._uses_kernels = kernels
    return draws, device


def logits_of(count, seed):
    return 2 * torch.randn(count, 40, generator=torch.Generator().manual_seed(seed))


def ways(params, kinds=None):
    """What both ways draw and verify; the drafts are drawn from logits near the target's."""
    target = logits_of(3 * (DRAFTS + 1), 1)
    near = target.view(3, DRAFTS + 1, -1)[:, :DRAFTS] + 0.3 * logits_of(3 * DRAFTS, 2).view(3, DRAFTS, -1)
    found = []
    for kernels in (False, True):
        draws, device = draws_of(params, kernels=kernels, kinds=kinds)
        starts = STARTS.to(device)
        drafts = draws.draw(near.to(device), starts, 0)
        one_by_one = [draws.draw(near[:, index : index + 1].to(device), starts, index) for index in range(DRAFTS)]
        assert torch.equal(torch.cat(one_by_one, dim=1), drafts)
        verdict = draws.verify(target.to(device), drafts, starts)
        found.append([drafts.tolist(), *(part.tolist() for part in verdict)])
    return target, found


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_are_one(kind):
    _, (by_rule, by_kernels) = ways(KINDS[kind])
    assert by_rule == by_kernels
    assert sum(by_rule[2]) > 0 and by_rule[3] == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_that_can_do_more_give_the_same_tokens(kind):
    needed = [kinds_of(Requests.of(params, SEEDS, SAMPLES, device="cpu")) for params in KINDS.values()]
    kinds = reduce(widened, needed)
    assert kinds == {"races": True, "top_p_alone": True, "lists": True, "unfiltered": False}
    _, (by_rule, by_kernels) = ways(KINDS[kind], kinds)
    assert by_rule == by_kernels


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_what_the_sampler_chain_and_the_noise_give(kind):
    params = KINDS[kind]
    target, (found, _) = ways(params)
    chain = SamplerChain()
    for request, (one, seed, sample) in enumerate(zip(params, SEEDS, SAMPLES, strict=True)):
        row_params = chain.resolve(one, None, VOCAB, ())
        emitted = [token for token in found[1][request] if token >= 0]
        for index, token in enumerate(emitted):
            row = target.view(3, DRAFTS + 1, -1)[request, index : index + 1]
            [law] = chain.laws(row, [row_params], [History([1])])
            weights, ids = law.weights()
            key = Key(Purpose.TARGET, int(STARTS[request]) + 1 + index)
            assert KeyedNoise(seed, sample).choice(key, weights, ids) == token
        accepted = found[0][request][: len(emitted) - 1]
        assert accepted == emitted[:-1]


def test_other_requests_take_the_places_of_the_first():
    params = KINDS["raced"]
    draws, device = draws_of(params, kernels=False)
    logits, starts = logits_of(3 * DRAFTS, 5).view(3, DRAFTS, -1).to(device), STARTS.to(device)
    draws.draw(logits, starts, 0)
    draws.use(params[::-1], SEEDS[::-1], SAMPLES[::-1])
    fresh = Draws(params[::-1], SEEDS[::-1], SAMPLES[::-1], num_drafts=DRAFTS, vocab_size=VOCAB, device=device)
    fresh._uses_kernels = False
    assert torch.equal(draws.draw(logits, starts, 0), fresh.draw(logits, starts, 0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_faulty_row_is_reported_where_the_walk_comes_to_it(value):
    params = KINDS["raced"]
    draws, device = draws_of(params, kernels=False)
    target = logits_of(3 * (DRAFTS + 1), 1).to(device)
    starts = STARTS.to(device)
    drafts = draws.verify(target, torch.zeros(3, DRAFTS, dtype=torch.int32, device=device), starts)[0][:, :1]
    drafts = drafts.expand(3, DRAFTS).contiguous()
    target[1] = value
    emitted, num_accepted, faults = draws.verify(target, drafts, starts)
    assert faults.tolist() == [1, 0, 0]
    assert num_accepted[0] == 1 and emitted[0].tolist() == [int(drafts[0, 0]), -1, -1, -1]
