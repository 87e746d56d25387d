"""`verify_rejection`, `verify_block` and `target_probs` against the library's chain and verifiers."""

import pytest
import torch

from draftproof import kernels
from draftproof.errors import ParameterError
from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows, verify_block, verify_rejection
from draftproof.params import SamplingParams
from tests.kernels import listed_checks, probs_checks, ratio_cases, ratio_fault_checks, settling_checks
from tests.kernels import ratio_checks as checks

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf


ALL = [*checks.CHECKS, *ratio_fault_checks.CHECKS, *probs_checks.CHECKS, *settling_checks.CHECKS, *listed_checks.CHECKS]


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.__name__.removeprefix("check_"))
def test_kernels(check) -> None:
    check(kernels)


@pytest.mark.parametrize("kind", ["probs", "sparse", "point"])
def test_every_law(kind: str) -> None:
    checks.check_mixed_batch(kernels, kind, seed=20)
    checks.check_law_without_filters(kernels, kind)


SETTLED = [*ratio_cases.FILTERS[:3], SamplingParams(temperature=1.0, top_p=0.9)]  # by `rejection` without bounds


@pytest.mark.parametrize("filters", [ratio_cases.FILTERS, SETTLED], ids=["all", "settled"])
@pytest.mark.parametrize("operation", ratio_cases.OPERATIONS)
def test_scratch_is_written_before_it_is_read(operation: str, filters: list[SamplingParams], device: str) -> None:
    case = ratio_cases.Case("logits", filters, [2, 3, 1, 2], seed=30)
    rows, draft, requests, logits = (*(part(kernels) for part in (case.rows, case.draft, case.requests)), case.logits)
    logits = logits.to(device)
    kernel = RatioKernel(logits, draft, rows, case.vocab_size, block=operation == "block", tile=ratio_cases.TILE)
    first = kernel(logits, draft, rows, requests).token_ids.clone()
    scratch = [*kernel._scratch, *kernel._draft_scratch, *kernel._rows, *kernel._node_state]
    scratch += [*kernel._bounding.bracket, kernel._before]
    if kernel._settling is not None:
        scratch += [*kernel._settling.sample, *kernel._settling.contenders]
    for tensor in [*scratch, *kernel._prefixes, *kernel._residual_masses, *kernel._racers]:
        tensor.fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
    assert torch.equal(kernel(logits, draft, rows, requests).token_ids, first)


def test_a_row_does_not_depend_on_its_batch(device: str) -> None:
    case = ratio_cases.Case("logits", ratio_cases.FILTERS, [3] * 7, seed=31)
    together = ratio_cases.emitted(case.run(kernels, "block"))
    for index in (0, 2, 5):
        alone = Rows.of_drafts([case.start(index)], [list(case.drafts[index].token_ids)], device=device)
        law = DraftLaws.dense(case.draft_logits[index].to(device), torch.tensor([case.temperatures[index]]).to(device))
        requests = Requests.of([case.params[index]], [case.seed(index)], device=device)
        assert ratio_cases.emitted(verify_block(case.rows_of(index).to(device), law, alone, requests)) == [
            together[index]
        ]


def test_what_it_cannot_take_is_refused(device: str) -> None:
    rows = Rows.of_drafts([3], [[5]], device=device)
    requests = Requests.of([SamplingParams()], [1], device=device)
    logits, one = torch.zeros(2, 8, device=device), torch.ones(1, device=device)
    with pytest.raises(ParameterError, match="chains"):
        tree = Rows.of_drafts([3], [[5]], [[-1]], device=device)
        verify_rejection(logits, DraftLaws.point_masses(), tree, requests)
    with pytest.raises(ParameterError, match="one for each drafted token"):
        verify_block(logits, DraftLaws.dense(logits, one), rows, requests)
    with pytest.raises(ParameterError, match="float64"):
        DraftLaws.dense(logits.double(), one)
    with pytest.raises(ParameterError, match="temperature"):
        DraftLaws.dense(logits, one.double())
    with pytest.raises(ParameterError, match="as requests"):
        verify_block(logits, DraftLaws.dense(logits[:1], torch.ones(2, device=device)), rows, requests)
    with pytest.raises(ParameterError, match="vocab_size"):
        DraftLaws.dense_probs(logits, vocab_size=9)
    with pytest.raises(ParameterError, match="one shape"):
        DraftLaws.sparse(torch.zeros(1, 3, dtype=torch.int32), torch.zeros(1, 4))
    with pytest.raises(ParameterError, match="float32"):
        kernels.target_probs(logits, Rows.of_drafts([3, 4], [[], []], device=device), requests, logits.bfloat16())
    with pytest.raises(ParameterError, match="as the kernel was made for"):
        kernel = RatioKernel(logits, DraftLaws.point_masses(), rows, 8, block=False, num_exceptions=3)
        kernel(logits, DraftLaws.point_masses(), rows, requests)
