"""Faults put into the kernels in CUDA C++, each of which its check has to catch."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from draftproof.kernels import DraftLaws, RatioKernel, Requests, Rows, nvrtc
from draftproof.kernels.ratio import reference as ratio_reference
from draftproof.params import SamplingParams
from tests.gpu.cases import emitted
from tests.gpu.test_counted import check_laws, counted

pytestmark = pytest.mark.gpu
__all__ = ["counted"]

V = 20_005
TOP_P = SamplingParams(temperature=1.0, top_p=0.7)
TOP_K = SamplingParams(temperature=1.0, top_k=40, top_p=0.9)
TOP_40 = SamplingParams(temperature=1.0, top_k=40)
WARM = SamplingParams(temperature=100.0, top_p=0.7)
HOT = SamplingParams(temperature=2000.0, top_p=0.7)
MIN_P = SamplingParams(temperature=1.0, min_p=0.2, top_p=0.9)


def some_logits(count: int = 4) -> torch.Tensor:
    """[rows, V + 3] of eight values to a unit, so that many are equal, in every row."""
    generator = torch.Generator(device="cuda").manual_seed(3)
    logits = torch.randn(count, V + 3, device="cuda", generator=generator) * 3
    return (torch.round(logits * 8) / 8).bfloat16()


def laws(params: SamplingParams, change: Callable[[torch.Tensor], object] | None = None) -> None:
    """The laws of rows of such logits, after `change`."""
    logits = some_logits()
    if change is not None:
        change(logits)
    check_laws(logits, [params], V)


def near_zero(logits: torch.Tensor) -> None:
    """All logits are 0 or next to it, on both sides."""
    logits.copy_(torch.sign(logits) * 1e-8)


def with_zeros(logits: torch.Tensor) -> None:
    """Half of the logits are -0, a quarter 0: where top-p ends."""
    logits[:, ::2], logits[:, 1::4] = -0.0, 0.0
    logits[:, 3::4] = -6.0


def stairs(logits: torch.Tensor) -> None:
    """The 60 likeliest tokens have logits of their own."""
    logits[:, :60] = 16 - torch.arange(60, device="cuda") / 8


def spread(logits: torch.Tensor) -> None:
    """Many logits are above the last slot's, and none is negative."""
    logits.copy_((logits * 1000).abs())


def spread_below(logits: torch.Tensor) -> None:
    """Many logits are below the last slot's, none above it."""
    logits.copy_(-(logits * 1000).abs())


def beyond(logits: torch.Tensor) -> None:
    """Behind the vocabulary stands what must not be looked at."""
    logits[:, V:] = 60.0


def verdicts(temperature: float) -> None:
    """What is emitted where drafts come from logits at `temperature`."""
    count, length = 8, 3
    logits = some_logits(count * (length + 1))[:, :V].contiguous()
    logits = torch.nn.functional.pad(logits, (0, 3))
    draft_logits = logits.view(count, length + 1, -1)[:, :length].reshape(count * length, -1).clone()
    draft_logits[:, ::3] += 1.0
    law = DraftLaws.dense(draft_logits, torch.full((count,), temperature, device="cuda"), vocab_size=V)
    probs = (draft_logits[:, :V].float() / max(temperature, 1e-3)).softmax(dim=1)
    generator = torch.Generator(device="cuda").manual_seed(5)
    tokens = torch.multinomial(probs, 1, generator=generator) if temperature else draft_logits[:, :V].argmax(dim=1)
    rows = Rows.of_drafts([9] * count, tokens.view(count, length).tolist(), device="cuda")
    requests = Requests.of([TOP_P] * count, range(count), device="cuda")
    kernel = RatioKernel(logits, law, rows, V, block=True)
    assert kernel._counted is not None
    verdict = kernel(logits, law, rows, requests)
    assert not verdict.faults.any()
    assert emitted(verdict.token_ids) == ratio_reference.verify(logits, law, rows, requests, V, block=True)


MUTANTS: dict[str, tuple[str, str, str, Callable[[], None]]] = {
    "one tied token too few": (
        "search.cuh", "min(max((goal - before + one - 1) / one, 1ull)", "min(max((goal - before) / one, 1ull)",
        partial(laws, TOP_P),
    ),
    "ties of one program alone": (
        "search.cuh", "left -= counts[other];", "", partial(laws, TOP_P),
    ),
    "the tied token of another place": (
        "ties.cuh", "8 * (rank * SHARE + at)", "8 * at", partial(laws, TOP_P),
    ),
    "top-p over what top-k drops": (
        "filters.cuh", "bound.units = shares.cut.units;", "", partial(laws, TOP_K),
    ),
    "top-k one too many": (
        "filters.cuh", "reaches<true>(filters.k,", "reaches<true>(filters.k + 1,", partial(laws, TOP_40, stairs),
    ),
    "min-p counts what it drops": (
        "filters.cuh", "&& !passes_min_p(z, largest, filters)) here = 0;", "&& false) here = 0;", partial(laws, MIN_P),
    ),
    "positive logits from the least up": (
        "filters.cuh", "sign ? units - own_units : ahead.own_units[sign] - units", "units - own_units",
        partial(laws, TOP_P),
    ),
    "zeros of two signs": (
        "filters.cuh", "slots.counts[0][0] += slots.counts[1][0];", "", partial(laws, TOP_P, with_zeros),
    ),
    "what is next to zero is zero": (
        "filters.cuh", "return found;\n}\n\n// What a healthy", "return false;\n}\n\n// What a healthy",
        partial(laws, TOP_P, near_zero),
    ),
    "logits above the last slot": (
        "filters.cuh", "largest > LAST ||", "", partial(laws, WARM, spread),
    ),
    "logits below the last slot": (
        "filters.cuh", "> LAST || (shares.ends &&", "> LAST || (false &&", partial(laws, HOT, spread_below),
    ),
    "passes leave out top-k": (
        "search.cuh", "lowest = low;", "", partial(laws, TOP_K, near_zero),
    ),
    "logits behind the vocabulary": (
        "row.cuh", "if (2 * at >= SIZE % 8) pair[at] = FORBIDDEN;", "if (false) {}", partial(laws, TOP_P, beyond),
    ),
    "the draft's mass isn't rescaled": (
        "row.cuh", "found.mass * exp2_of(change)", "found.mass", partial(verdicts, 0.8),
    ),
    "coins of the row before": (
        "ratio.cu", "uniform_of(COIN + local", "uniform_of(COIN + local - 1", partial(verdicts, 0.8),
    ),
    "the last of equal logits is the argmax": (
        "law.cuh", "__reduce_min_sync", "__reduce_max_sync", partial(verdicts, 0.0),
    ),
    "a greedy draft's law is spread": (
        "ratio.cu", "greedy ? 0.0f : drawn.scale", "drawn.scale", partial(verdicts, 0.0),
    ),
}  # fmt: skip


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the sources, which kernels are compiled from meanwhile."""
    folder = tmp_path / "cuda"
    shutil.copytree(nvrtc.SOURCES, folder)
    monkeypatch.setattr(nvrtc, "image_of", partial(nvrtc.image_of, folder=folder))
    nvrtc.compiled.cache_clear()
    yield folder
    nvrtc.compiled.cache_clear()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, sources: Path) -> None:
    file, old, new, check = MUTANTS[name]
    text = (sources / file).read_text()
    assert text.count(old) == 1
    (sources / file).write_text(text.replace(old, new))
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize(
    "name", ["one tied token too few", "passes leave out top-k", "the draft's mass isn't rescaled"]
)
def test_their_checks_pass_without_them(name: str, sources: Path) -> None:
    MUTANTS[name][3]()
