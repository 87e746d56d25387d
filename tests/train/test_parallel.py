"""Training in two processes: the gradients are the mean over both's batches, and a killed run goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from draftproof.train import loop
from draftproof.train.recipes import RECIPES
from tests.train.conftest import make_target
from tests.train.parallel_worker import settings_of

WORKER = Path(__file__).with_name("parallel_worker.py")
ROOT = WORKER.parents[2]
METHODS = tuple(sorted(RECIPES))
STEPS = 4


def run(text, out, num_steps, methods, dies_at=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORKER)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    environment["DIES_AT"] = str(dies_at)
    arguments = [str(text), str(out), str(num_steps), *methods]
    result = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert (result.returncode == 0) == (dies_at == 0), result.stderr[-3000:]


def weights(out, method, rank):
    return torch.load(out / f"{method}.{rank}.pt", weights_only=True)


def alone(text, folder, method):
    """The same steps in one process: both processes' batches one after the other, their gradients averaged."""
    run = loop._Run(make_target(), text, folder, settings_of(method, STEPS), lambda record: None, 0, 1)
    for step in range(STEPS):
        run.optimizer.zero_grad()
        for run.rank in (0, 1):
            loss, _ = run.recipe.loss(run.batches.batch(2 * step + run.rank), run._generator(step))
            (loss / 2).backward()
        rate = run.settings.learning_rate * loop._schedule(step / STEPS, run.settings.warmup_share)
        run.optimizer.param_groups[0]["lr"] = rate
        nn.utils.clip_grad_norm_(run.trained, run.settings.max_gradient_norm)
        run.optimizer.step()
    return run.recipe.module.state_dict()


@pytest.fixture(scope="module")
def out(text, tmp_path_factory):
    """What both processes end with, for every method."""
    folder = tmp_path_factory.mktemp("parallel")
    run(text, folder, STEPS, METHODS)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_gradients_are_the_mean_of_both_batches(out, text, tmp_path, method):
    first, second = (weights(out, method, rank) for rank in (0, 1))
    expected = alone(text, tmp_path, method)
    assert first.keys() == expected.keys()
    for name in expected:
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], expected[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_one_process_alone_writes(out, method):
    records = [json.loads(line) for line in (out / method / "training/log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "evaluation"] == [2, 4, 4]
    assert sum(record["kind"] == "start" for record in records) == 1
    assert (out / method / "model.safetensors").is_file()


def test_a_run_whose_process_died_goes_on(out, text, tmp_path):
    """From the state on disk, which both read: the same bits in the end."""
    run(text, tmp_path, STEPS, ["dspark"], dies_at=2)
    assert torch.load(tmp_path / "dspark/training/state.pt", weights_only=True)["step"] == 2
    run(text, tmp_path, STEPS, ["dspark"])
    whole = weights(out, "dspark", 0)
    for rank in (0, 1):
        parts = weights(tmp_path, "dspark", rank)
        assert all(torch.equal(parts[name], whole[name]) for name in whole)
