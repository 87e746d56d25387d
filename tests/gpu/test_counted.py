"""Rows bounded by how many tokens have each logit (kernels/cuda): laws and verdicts at every kind of row."""

from dataclasses import replace

import pytest
import torch

from benchmarks.verify_ratio import is_law
from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows, TargetProbsKernel, reference
from draftproof.kernels.counted import shape_of
from draftproof.kernels.nvrtc import available
from draftproof.kernels.ratio import reference as ratio_reference
from draftproof.params import SamplingParams
from tests.gpu.cases import KINDS, VOCAB_SIZE, check_captured, drafted, emitted, logits_of, spoil

pytestmark = pytest.mark.gpu

BOTH = SamplingParams(temperature=0.7, top_k=300, top_p=0.6)
THREE = SamplingParams(temperature=1.3, top_k=900, top_p=0.8, min_p=1e-3)


@pytest.fixture(autouse=True)
def counted() -> None:
    if not available(torch.device("cuda", 0)):
        pytest.skip("kernels in CUDA C++ are for compute capability 9, with cuda-bindings there")


def check_laws(logits: torch.Tensor, kinds: list[SamplingParams], vocab_size: int) -> None:
    """Each row under each of `kinds` is the float64 law's within 1e-6, but where top-p ends at a near tie."""
    for params in kinds:
        count = logits.shape[0]
        rows = Rows.of_drafts([5] * count, [[]] * count, device="cuda")
        requests, wider = (
            Requests.of([each] * count, range(count), device="cuda") for each in (params, replace(params, top_p=1.0))
        )
        requests = replace(requests, top_p_alone=True)  # as if another request asked for these launches
        kernel = TargetProbsKernel(logits, rows, vocab_size)
        assert kernel._counted is not None
        out = torch.full((count, vocab_size), float("nan"), device="cuda")
        assert not kernel(logits, rows, requests, out).any()
        laws = [reference.probs(logits, rows, each, vocab_size) for each in (requests, wider)]
        for row in range(count):
            part = slice(row, row + 1)
            assert is_law(out[part], laws[0][part], laws[1][part], params.top_p), (params, row)


def test_laws_of_rows_of_every_kind() -> None:
    """Equal logits in thousands and all over, few likely tokens, zeros and what is next to them, huge ones, masks."""
    kinds = [*KINDS, BOTH, THREE]
    logits = torch.empty(12, VOCAB_SIZE, device="cuda")
    logits[:] = logits_of(12, VOCAB_SIZE, torch.float32)
    logits[1] = torch.round(logits[1])
    logits[2] = 0.5
    logits[3, ::3000] += 14.0
    logits[4] = torch.where(logits[4] > 0, logits[4], 0.0)
    logits[5] *= 1e-9
    logits[6] = torch.randint(-3, 4, (VOCAB_SIZE,), device="cuda") * 1e-8
    logits[7] *= 700.0
    logits[8] = torch.where(logits[8] > 3.0, logits[8], -torch.inf)
    logits[9] -= 2000.0
    logits[10, 5:] = -torch.inf
    logits[11] = torch.where(logits[11] > 0.0, -0.0, 0.0)
    check_laws(logits.bfloat16(), kinds, VOCAB_SIZE)


def test_temperatures_at_which_the_lowest_logits_weigh_something() -> None:
    logits = (logits_of(3, VOCAB_SIZE, torch.float32) * 900.0).bfloat16()
    hot = [SamplingParams(temperature=1e4, top_p=0.9), SamplingParams(temperature=3e4, top_p=0.5)]
    check_laws(logits, [*hot, SamplingParams(temperature=3000.0, top_k=100_000)], VOCAB_SIZE)


@pytest.mark.parametrize(("count", "vocab_size"), [(2, 8_200), (40, 8_203), (17, 50_257), (3, 300_000), (200, 20_001)])
def test_laws_of_other_vocabularies(count: int, vocab_size: int) -> None:
    """As many shapes of clusters, padded rows, and a buffer that can't be written by fours."""
    padded = -(-vocab_size // 64) * 64 + 8
    logits = logits_of(count, padded, torch.bfloat16)
    assert shape_of(count, vocab_size, 132) is not None
    check_laws(logits, [KINDS[1], BOTH, THREE], vocab_size)


def test_bad_rows_are_faults() -> None:
    logits = logits_of(4, VOCAB_SIZE, torch.bfloat16)
    logits[0, 77], logits[1, 140_000], logits[2] = float("nan"), float("inf"), -float("inf")
    rows = Rows.of_drafts([5] * 4, [[]] * 4, device="cuda")
    for params in (KINDS[1], KINDS[-1]):
        out = torch.zeros(4, VOCAB_SIZE, device="cuda")
        requests = replace(Requests.of([params] * 4, range(4), device="cuda"), top_p_alone=True)
        faults = TargetProbsKernel(logits, rows, VOCAB_SIZE)(logits, rows, requests, out)
        assert faults.tolist() == [1, 1, 2, 0]
        assert out[:3].isnan().all() and not out[3].isnan().any()


@pytest.mark.parametrize("kind", ["logits", "point"])
@pytest.mark.parametrize("count", [2, 8, 40])
def test_verdicts_are_the_references_and_those_of_the_other_launches(kind: str, count: int) -> None:
    """All parameters mixed, greedy drafts among them, by eight programs a row and by two."""
    kinds = [*KINDS, BOTH, THREE]
    params = [kinds[index % len(kinds)] for index in range(1, count + 1)]
    logits, draft_logits, tokens = drafted(count, VOCAB_SIZE, torch.bfloat16)
    temperature = torch.full((count,), 0.8, device="cuda")
    if kind == "logits":
        temperature[1::4] = 0.0
        best = draft_logits.argmax(dim=1).view(count, -1).tolist()
        tokens = [best[index] if index % 4 == 1 else own for index, own in enumerate(tokens)]
    law = DraftLaws.dense(draft_logits, temperature) if kind == "logits" else DraftLaws.point_masses()
    rows = Rows.of_drafts([30 + index for index in range(count)], tokens, device="cuda")
    requests = Requests.of(params, range(count), device="cuda")
    for block in (False, True):
        expected = ratio_reference.verify(logits, law, rows, requests, VOCAB_SIZE, block=block)
        kernel = RatioKernel(logits, law, rows, VOCAB_SIZE, block=block)
        assert kernel._counted is not None
        spoil(kernel)
        verdict = kernel(logits, law, rows, requests)
        assert not verdict.faults.any()
        assert emitted(verdict.token_ids) == expected
        kernel._counted = None
        assert emitted(kernel(logits, law, rows, requests).token_ids) == expected


def test_faults_of_rows_and_of_drafts() -> None:
    logits, draft_logits, tokens = drafted(4, VOCAB_SIZE, torch.bfloat16)
    logits.view(4, -1, VOCAB_SIZE)[1, 0, 9] = float("nan")
    draft_logits.view(4, -1, VOCAB_SIZE)[2, 0] = float("nan")
    draft_logits.view(4, -1, VOCAB_SIZE)[3, 0, tokens[3][0]] = -float("inf")
    law = DraftLaws.dense(draft_logits, torch.full((4,), 0.8, device="cuda"))
    rows = Rows.of_drafts([3] * 4, tokens, device="cuda")
    requests = Requests.of([KINDS[1]] * 4, range(4), device="cuda")
    for block in (False, True):
        kernel = RatioKernel(logits, law, rows, VOCAB_SIZE, block=block)
        verdict = kernel(logits, law, rows, requests)
        assert verdict.faults.tolist() == [0, 1, 3, 3]
        assert verdict.num_accepted.tolist()[1:] == [0, 0, 0]


def test_a_captured_graph_allocates_nothing_and_reads_new_logits() -> None:
    check_captured([KINDS[1], KINDS[2]], block=True)


def test_logits_of_a_later_call_that_begin_elsewhere_take_the_other_launches() -> None:
    logits = logits_of(3, VOCAB_SIZE + 8, torch.bfloat16)
    rows = Rows.of_drafts([5] * 3, [[]] * 3, device="cuda")
    requests = Requests.of([KINDS[1]] * 3, range(3), device="cuda")
    kernel = TargetProbsKernel(logits[:, :VOCAB_SIZE], rows, VOCAB_SIZE)
    assert kernel._counted is not None
    for begin in (0, 4):
        part, out = logits[:, begin : begin + VOCAB_SIZE], torch.empty(3, VOCAB_SIZE, device="cuda")
        assert not kernel(part, rows, requests, out).any()
        law = reference.probs(part, rows, requests, VOCAB_SIZE)
        wider = Requests.of([replace(KINDS[1], top_p=1.0)] * 3, range(3), device="cuda")
        assert is_law(out, law, reference.probs(part, rows, wider, VOCAB_SIZE), KINDS[1].top_p)
