"""`verify_keyed` against the library's own chain and verifier: equal tokens, counts and paths."""

import dataclasses

import pytest
import torch

from draftproof.core import Draft, Key, Purpose
from draftproof.errors import ParameterError
from draftproof.kernels import Changes, KeyedKernel, Requests, Rows, draw, reference, verify_keyed
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.verify import get_verifier

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf

KINDS = {
    "plain": SamplingParams(temperature=0.8),
    "greedy": SamplingParams(temperature=0),
    "top-p": SamplingParams(temperature=0.8, top_p=0.6),
    "top-k and top-p": SamplingParams(temperature=1.0, top_k=7, top_p=0.8),
    "min-p": SamplingParams(temperature=1.2, min_p=0.2),
    "a filter that keeps more than a list": SamplingParams(temperature=3.0, top_k=400),
}


def host_tokens(logits: torch.Tensor, params: SamplingParams, seed: int, start: int, depths: list[int]) -> list[int]:
    """Each row's token by the library's chain and noise."""
    chain, noise = SamplerChain("vllm"), KeyedNoise(seed)
    row_params = chain.resolve(params, None, logits.shape[1])
    laws = chain.laws(logits, row_params, [History([1])] * len(depths))
    pairs = zip(laws, depths, strict=True)
    return [law.draw(noise, Key(Purpose.TARGET, start + depth)) for law, depth in pairs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_the_library_over_a_mixed_ragged_batch(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(5)
    vocab_size, lengths = 601, [3, 0, 2, 1, 2, 1]
    kinds = list(KINDS.values())
    starts, seeds = [4 + 3 * index for index in range(6)], [2**63 + index for index in range(6)]
    rows_of = [1 + length for length in lengths]
    logits = (torch.randn(sum(rows_of), vocab_size) * 1.5).to(dtype)
    drafts, expected, first = [], [], 0
    for index, count in enumerate(rows_of):
        block = logits[first : first + count]
        first += count
        tokens = host_tokens(block, kinds[index], seeds[index], starts[index], list(range(count)))
        draft = tokens[: index % 3][: count - 1]
        draft += [(token + 1) % vocab_size for token in tokens[len(draft) : count - 1]]
        drafts.append(draft)
        chain = SamplerChain("vllm")
        laws = chain.laws(block, chain.resolve(kinds[index], None, vocab_size), [History([1])] * count)
        name = "greedy" if kinds[index].temperature == 0 else "keyed"
        verdict = get_verifier(name).verify(Draft.of_token_ids(starts[index], draft), laws, KeyedNoise(seeds[index]))
        expected.append(list(verdict.token_ids))
    rows = Rows.of_drafts(starts, drafts, device=device)
    verdict = verify_keyed(logits.to(device), rows, Requests.of(kinds, seeds, device=device))
    assert [[token for token in row if token >= 0] for row in verdict.token_ids.tolist()] == expected
    assert [count + 1 for count in verdict.num_accepted.tolist()] == [len(tokens) for tokens in expected]
    assert not verdict.faults.any()


def test_walks_a_tree(device: str) -> None:
    torch.manual_seed(6)
    vocab_size, parents = 256, [-1, -1, 0, 1, 3, 3]
    depths = [0, 1, 1, 2, 2, 3, 3]
    logits = torch.randn(7, vocab_size).bfloat16()
    params = SamplingParams(temperature=0.9)
    tokens = host_tokens(logits, params, 11, 9, depths)
    # The path root, node 1, node 3, node 5 holds what its rows draw; the others miss.
    draft = [(tokens[0] + 1) % vocab_size, tokens[0], 0, tokens[2], (tokens[4] + 1) % vocab_size, tokens[4]]
    rows = Rows.of_drafts([9], [draft], [parents], device=device)
    verdict = verify_keyed(logits.to(device), rows, Requests.of([params], [11], device=device))
    assert verdict.accepted_rows[0].tolist()[:3] == [2, 4, 6]
    assert verdict.token_ids[0].tolist()[:4] == [tokens[0], tokens[2], tokens[4], tokens[6]]
    assert verdict.num_accepted.tolist() == [3]


@pytest.mark.parametrize(("value", "fault"), [(float("nan"), 1), (float("inf"), 1), (-float("inf"), 2)])
@pytest.mark.parametrize("kind", ["plain", "greedy", "top-p", "min-p"])
def test_a_bad_row_is_its_requests_own_fault(value: float, fault: int, kind: str, device: str) -> None:
    torch.manual_seed(7)
    logits = torch.randn(3, 256)
    logits[1, 17 if fault == 1 else slice(None)] = value
    rows = Rows.of_drafts([3, 3, 3], [[], [], []], device=device)
    token_ids, faults = draw(logits.to(device), rows, Requests.of([KINDS[kind]] * 3, [1, 2, 3], device=device))
    assert faults.tolist() == [0, fault, 0]
    assert [token >= 0 for token in token_ids.tolist()] == [True, False, True]


@pytest.mark.parametrize("kind", ["plain", "greedy", "top-p", "min-p"])
def test_a_penalised_tokens_bad_logit_is_a_fault_too(kind: str, device: str) -> None:
    torch.manual_seed(7)
    logits = torch.randn(2, 256)
    logits[1, 17] = float("nan")
    params = [dataclasses.replace(KINDS[kind], presence_penalty=0.5)] * 2
    rows = Rows.of_drafts([3, 3], [[], []], device=device)
    requests = Requests.of(params, [1, 2], device=device, changed=True)
    changes = Changes.of(params, [[17, 5]] * 2, [[], []], device=device)
    _, faults = draw(logits.to(device), rows, requests, changes=changes)
    assert faults.tolist() == [0, 1]


def test_masks_and_padded_rows(device: str) -> None:
    torch.manual_seed(8)
    logits = torch.full((2, 300), float("nan"))
    logits[:, :253] = torch.randn(2, 253)
    allowed_ids = [3, 40, 252]
    words = torch.zeros(2, 8, dtype=torch.int64)
    for token in allowed_ids:
        words[:, token // 32] |= 1 << (token % 32)
    allowed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    params = SamplingParams(temperature=5.0, allowed_token_ids=allowed_ids)
    expected = [host_tokens(logits[i : i + 1, :253], params, 20 + i, 6, [0])[0] for i in range(2)]
    rows = Rows.of_drafts([6, 6], [[], []], device=device)
    requests = Requests.of([SamplingParams(temperature=5.0)] * 2, [20, 21], device=device)
    token_ids, _ = draw(logits.to(device), rows, requests, vocab_size=253, allowed=allowed.to(device))
    assert token_ids.tolist() == expected


def test_scratch_is_written_before_it_is_read(device: str) -> None:
    torch.manual_seed(9)
    logits = torch.randn(4, 256).bfloat16().to(device)
    rows = Rows.of_drafts([3] * 4, [[]] * 4, device=device)
    kinds = [KINDS[name] for name in ("plain", "greedy", "top-p", "top-k and top-p")]
    requests = Requests.of(kinds, [1, 2, 3, 4], device=device)
    kernel = KeyedKernel(logits, rows, 256)
    first = kernel(logits, rows, requests).token_ids.clone()
    for scratch in kernel._scratch:
        scratch.fill_(float("nan") if scratch.is_floating_point() else torch.iinfo(scratch.dtype).max)
    assert torch.equal(kernel(logits, rows, requests).token_ids, first)


def test_what_it_cannot_take_is_refused(device: str) -> None:
    rows = Rows.of_drafts([3], [[]], device=device)
    requests = Requests.of([SamplingParams()], [1], device=device)
    with pytest.raises(ParameterError, match="float64"):
        draw(torch.zeros(1, 8, dtype=torch.float64, device=device), rows, requests)
    with pytest.raises(ParameterError, match="vocab_size"):
        draw(torch.zeros(1, 8, device=device), rows, requests, vocab_size=9)
    with pytest.raises(ParameterError, match="temperature"):
        Requests.of([SamplingParams(temperature=1e-35)], [1], device=device)
    with pytest.raises(ParameterError, match="`changes`"):
        Requests.of([SamplingParams(presence_penalty=1.0)], [1], device=device)
    with pytest.raises(ParameterError, match="sampler chain"):
        Requests.of([SamplingParams(typical_p=0.5)], [1], device=device)
    with pytest.raises(ParameterError, match="`allowed`"):
        Requests.of([SamplingParams(min_tokens=2)], [1], device=device)
    for wrong in (torch.zeros(2, 1), torch.zeros(1, 1, dtype=torch.int32), torch.zeros(2, 0, dtype=torch.int32)):
        with pytest.raises(ParameterError, match="allowed"):
            two = Rows.of_drafts([3, 3], [[], []], device=device)
            both = Requests.of([SamplingParams()] * 2, [1, 2], device=device)
            draw(torch.zeros(2, 8, device=device), two, both, allowed=wrong.to(device))
    with pytest.raises(ParameterError, match="tile"):
        KeyedKernel(torch.zeros(1, 8, device=device), rows, 8, tile=2048)
    with pytest.raises(ParameterError, match="one row"):
        draw(torch.zeros(2, 8, device=device), Rows.of_drafts([3], [[5]], device=device), requests)


def test_the_reference_draws_the_same(device: str) -> None:
    torch.manual_seed(10)
    logits = (torch.randn(len(KINDS), 301) * 2).bfloat16().to(device)
    rows = Rows.of_drafts([7] * len(KINDS), [[]] * len(KINDS), device=device)
    requests = Requests.of(list(KINDS.values()), list(range(len(KINDS))), device=device)
    assert reference.draw(logits, rows, requests, 301).tolist() == draw(logits, rows, requests)[0].tolist()


@pytest.mark.parametrize("kind", ["plain", "greedy", "top-p", "top-k and top-p", "min-p"])
def test_penalties_and_bias_see_the_drafts_before_each_row(kind: str, device: str) -> None:
    torch.manual_seed(12)
    vocab_size, prompt, output = 257, [5, 9, 9, 200], [7, 9, 256]
    params = dataclasses.replace(
        KINDS[kind],
        repetition_penalty=1.7,
        frequency_penalty=0.6,
        presence_penalty=0.9,
        logit_bias={3: 4.0, 9: 5.0, 77: -float("inf")},
    )
    parents = [-1, 0, 0]
    logits = (torch.randn(4, vocab_size) * 2).bfloat16()
    logits[:, 77] = 30.0  # banned, or it would win every row
    chain, noise = SamplerChain("vllm"), KeyedNoise(5)
    row_params = chain.resolve(params, None, vocab_size)
    base = History(prompt, output)
    [first] = chain.laws(logits[:1], row_params, [base])
    root = first.draw(noise, Key(Purpose.TARGET, 7))
    # The root's draw comes again below itself: its count is 1 there, and 2 would be wrong.
    draft = [root, root, 3]
    histories = [base, base.extended([root]), base.extended([root, root]), base.extended([root, 3])]
    laws = chain.laws(logits, row_params, histories)
    name = "greedy" if params.temperature == 0 else "keyed"
    expected = get_verifier(name).verify(Draft.of_token_ids(7, draft, parents), laws, noise)
    rows = Rows.of_drafts([7], [draft], [parents], device=device)
    verdict = verify_keyed(
        logits.to(device),
        rows,
        Requests.of([params], [5], device=device, changed=True),
        changes=Changes.of([params], [prompt], [output], device=device),
    )
    assert [token for token in verdict.token_ids[0].tolist() if token >= 0] == list(expected.token_ids)
    assert verdict.num_accepted.item() >= 1
