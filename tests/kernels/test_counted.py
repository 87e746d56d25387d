"""Kernels in CUDA C++ where there is no GPU: their sources compile, their shapes fit, and nothing else takes them."""

from pathlib import Path

import pytest
import torch

from draftproof.kernels import DraftLaws, Requests, counted
from draftproof.kernels.counted import fits, shape_of
from draftproof.kernels.launch import Plan
from draftproof.kernels.nvrtc import available, image_of
from draftproof.kernels.ratio.counted import CountedLaws
from draftproof.params import SamplingParams

SHAPES = [(1, 8_200), (16, 151_936), (17, 32_000), (33, 128_256), (64, 151_936), (1024, 300_000)]


@pytest.mark.parametrize(("num_rows", "vocab_size"), SHAPES)
@pytest.mark.parametrize(("source", "law"), [("ratio.cu", 0), ("ratio.cu", 1), ("probs.cu", 0)])
def test_sources_compile_for_every_shape_of_cluster(num_rows: int, vocab_size: int, source: str, law: int) -> None:
    shape = shape_of(num_rows, vocab_size, 132)
    assert shape is not None
    cluster, threads, shared = shape
    defined = {"V": vocab_size, "DRAFT_V": vocab_size - 7 * law, "TILES": 512, "LAW": law, "CLUSTER": cluster,
               "THREADS": threads, "RESIDENT": 2 if cluster == 8 else 1}  # fmt: skip
    assert image_of(source, (9, 0), tuple(defined.items()))[:4] == b"\x7fELF"
    assert shared <= 216 * 1024


def test_a_source_that_does_not_compile_says_why(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text("__global__ void wrong() { int* nowhere = 1.5; }")
    with pytest.raises(RuntimeError, match=r"(?s)wrong\.cu doesn't compile for sm_90: .*nowhere"):
        image_of("wrong.cu", (9, 0), (), tmp_path)


def test_as_many_programs_share_a_row_as_the_gpu_has_processors_for() -> None:
    found = [shape_of(num_rows, 151_936, 132) for num_rows in (1, 16, 17, 33, 34, 1024)]
    assert [None if shape is None else shape[:2] for shape in found] == [
        (8, 512), (8, 512), (4, 512), (4, 512), (2, 1024), (2, 1024),
    ]  # fmt: skip
    assert shape_of(1024, 300_000, 132) == (4, 512, 2048 * 74 + 32768)
    assert shape_of(1, 2_000_000, 132) is None


def test_rows_that_cannot_be_copied_by_16_bytes_are_not_taken() -> None:
    logits = torch.zeros(4, 16_384, dtype=torch.bfloat16)
    assert fits(logits, 16_384) and fits(logits, 16_377) and fits(logits[:, 8:], 16_376)
    assert not fits(logits[:, 1:], 16_000)
    assert not fits(torch.zeros(4, 16_379, dtype=torch.bfloat16), 16_379)
    assert not fits(logits.half(), 16_384) and not fits(logits.float(), 16_384)


def test_nothing_is_made_for_a_cpu() -> None:
    logits = torch.zeros(4, 16_384, dtype=torch.bfloat16)
    assert not available(logits.device)
    assert CountedLaws.of(Plan.of(logits, 16_384), logits, DraftLaws.point_masses()) is None


def test_each_call_is_asked_where_its_logits_begin() -> None:
    logits = torch.zeros(5, 16_384, dtype=torch.bfloat16)
    dense = DraftLaws.dense(logits[1:, 8:], torch.ones(1))
    assert CountedLaws.takes(logits, DraftLaws.point_masses()) and CountedLaws.takes(logits[:, 8:], dense)
    assert not CountedLaws.takes(logits[:, 4:], dense)
    assert not CountedLaws.takes(logits, DraftLaws.dense(logits[1:, 4:], torch.ones(1)))


def test_it_is_taken_where_top_p_alone_asks_for_bounds() -> None:
    params = [SamplingParams(temperature=1.0, top_p=0.9), SamplingParams(temperature=1.0, top_k=5)]
    alone, listed, both = (
        Requests.of(some, range(len(some)), device="cpu") for some in (params[:1], params[1:], params)
    )
    assert CountedLaws.pays(alone, 16, settles=True) and not CountedLaws.pays(alone, 17, settles=True)
    assert CountedLaws.pays(alone, 512, settles=False) and CountedLaws.pays(both, 512, settles=True)
    assert not CountedLaws.pays(listed, 16, settles=False)


def test_a_source_that_does_not_compile_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise RuntimeError("ratio.cu doesn't compile for sm_90: no such thing")

    logits = torch.zeros(4, 16_384, dtype=torch.bfloat16)
    monkeypatch.setattr(counted, "available", lambda device: True)
    monkeypatch.setattr(counted, "processors_of", lambda device: 132)
    monkeypatch.setattr(counted, "compiled", refused)
    with pytest.warns(RuntimeWarning, match="Triton's kernels are taken.*no such thing"):
        assert CountedLaws.of(Plan.of(logits, 16_384), logits, DraftLaws.point_masses()) is None
