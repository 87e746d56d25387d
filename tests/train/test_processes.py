"""Several processes train one drafter: gradients are means over their batches, and process 0 alone writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from draftproof.train import loop, processes
from tests.train.conftest import make_target
from tests.train.process_worker import SETTINGS

ROOT = Path(__file__).parents[2]


def steps_of_two_processes_in_one(text, out):
    """A step is the mean gradient of batches 2 s and 2 s + 1, each with its process's random numbers."""
    run = loop._Run(make_target(), text, out, SETTINGS, lambda record: None, 0, 1)
    while run.step < SETTINGS.num_steps:
        rate = SETTINGS.learning_rate * loop._schedule(run.step / SETTINGS.num_steps, SETTINGS.warmup_share)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        run.optimizer.zero_grad()
        for run.rank in (0, 1):
            loss, _ = run.objective(run.batches.batch(2 * run.step + run.rank), run._generator(run.step))
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(run.trained, SETTINGS.max_gradient_norm)
        run.optimizer.step()
        run.step += 1
    return run.recipe.tensors()


def test_two_processes_train_as_one_with_both_batches(text, tmp_path):
    out = tmp_path / "out"
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(Path(__file__).with_name("process_worker.py")), str(text), str(out))  # fmt: skip
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in (out / "training" / loop.LOG_NAME).read_text().splitlines()]
    assert [record["kind"] for record in records] == ["start", "train", "evaluation", "evaluation", "evaluation"]
    assert records[-1]["step"] == SETTINGS.num_steps
    trained = load_file(out / "model.safetensors")
    expected = steps_of_two_processes_in_one(text, tmp_path / "one")
    assert set(trained) == set(expected)
    begun = loop._Run(make_target(), text, tmp_path / "none", SETTINGS, lambda record: None, 0, 1).recipe.tensors()
    assert any((trained[name] - begun[name].to(trained[name])).abs().max() > 1e-3 for name in trained)
    for name, tensor in expected.items():
        torch.testing.assert_close(trained[name], tensor.detach().to(trained[name]), rtol=0, atol=2e-4, msg=name)


@pytest.mark.parametrize(
    ("environment", "device", "expected"),
    [
        ({}, "cuda", "cuda"),
        ({"LOCAL_RANK": "1"}, "cuda", "cuda:1"),
        ({"LOCAL_RANK": "1"}, "cuda:0", "cuda:0"),
        ({"LOCAL_RANK": "1"}, "cpu", "cpu"),
    ],
)
def test_each_process_has_a_gpu_of_its_own(monkeypatch, environment, device, expected):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert processes.own_device(device) == expected
    assert chosen == ([1] if expected == "cuda:1" else [])


def test_ranks(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert processes.rank_and_world() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert processes.rank_and_world() == (3, 4)
