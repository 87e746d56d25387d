"""Kernels that begin while the one before them ends, on a CUDA device: the bits of kernels one after another."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import draftproof
from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from draftproof.targets.static import chaining, products
from tests.targets.models import VOCAB_SIZE, tiny_model

pytestmark = pytest.mark.gpu

LENGTH = 24


def scores(model, num_rounds=12):
    """Of steps of one token and of more, other tokens each time: what a replay left behind is never what is right."""
    target, source = HFTarget(model, num_slots=32), random.Random(11)
    for slot in range(32):
        target.prefill(slot, [source.randrange(VOCAB_SIZE) for _ in range(LENGTH)])
    found = []
    for num_requests, num_tokens in ((1, 1), (1, 16), (8, 8), (16, 8), (32, 8)):
        for _ in range(num_rounds):
            tokens = [tuple(source.randrange(VOCAB_SIZE) for _ in range(num_tokens)) for _ in range(num_requests)]
            found += [rows.clone() for rows in target.score([ScoreRequest(*each) for each in enumerate(tokens)])]
            for slot in range(num_requests):
                target.rewind(slot, LENGTH)
    return found


def agrees() -> bool:
    """Do steps have the bits of the same kernels launched one after another?"""
    processors = torch.cuda.get_device_properties("cuda").multi_processor_count
    sizes = {"hidden_size": 2048, "intermediate_size": products.WIDE_COLUMNS * processors // 768 * 768}
    model = tiny_model("qwen3", torch.bfloat16, **sizes, num_hidden_layers=3, initializer_range=0.05).cuda()
    assert chaining.chained(next(model.parameters()))["launch_pdl"]
    early = scores(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chaining, "_is_able", lambda device: False)
        late = scores(model)
    return all(torch.equal(found, expected) for found, expected in zip(early, late, strict=True))


def needs_early_launches() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("its kernels begin one after another")


def test_steps_have_the_bits_of_kernels_one_after_another():
    needs_early_launches()
    assert agrees()


def test_kernels_that_do_not_wait_are_caught(tmp_path):
    """In a process of its own, over a copy of the package."""
    needs_early_launches()
    package = Path(draftproof.__file__).parent
    shutil.copytree(package, tmp_path / "draftproof", ignore=shutil.ignore_patterns("weights", "__pycache__"))
    file = tmp_path / "draftproof/targets/static/device/chain.py"
    source, wait = file.read_text(encoding="utf-8"), "tl.extra.cuda.gdc_wait()"
    assert source.count(wait) == 1
    file.write_text(source.replace(wait, "pass"), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    script = "from tests.gpu import test_chaining as t; print(t.draftproof.__file__, t.agrees())"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(tmp_path / "draftproof/__init__.py"), "False"]
