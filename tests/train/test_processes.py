"""Which device each of several training processes takes."""

import pytest
import torch

from draftproof.train import processes


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
