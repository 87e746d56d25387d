"""`draftproof train`: every flag reaches the settings that it names."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import draftproof.cli.train
import draftproof.train.generate
import draftproof.train.starts
import draftproof.train.turns
from draftproof.cli.root import main
from draftproof.train.generate import GenerationSettings
from draftproof.train.turns import Turns

GIVEN = {"batch_size": 3, "num_columns": 40, "max_length": 30, "prompt_share": 0.25, "system_share": 0.5,
         "stem_share": 0.75, "user_temperature": 0.9, "top_p": 0.8, "seed": 7}  # fmt: skip


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="draftproof")


def test_data_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    tokenizer = lambda text, add_special_tokens: {"input_ids": [1]}  # noqa: E731
    target = SimpleNamespace(device=torch.device("cpu"), tokenizer=tokenizer, eos_token_ids=(0,))
    monkeypatch.setattr(draftproof.cli.train, "_load", lambda given: target)
    monkeypatch.setattr(draftproof.train.starts, "widened_stems", lambda tokenizer, seed: [str(seed)])
    monkeypatch.setattr(draftproof.train.turns, "read_turns", lambda *args: Turns((1,), (0, 2), frozenset({0})))
    monkeypatch.setattr(
        draftproof.train.generate,
        "generate_corpus",
        lambda target, turns, prompts, folder, settings, **more: seen.append(settings) or iter([(1, 9)]),
    )
    flags = [part for name, value in GIVEN.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    found = invoke("train", "data", "--out", "text", "--num-tokens", "5", "--temperature", "0.1,0.6", *flags)
    assert found.exit_code == 0, found.output
    assert asdict(seen[0]) == {**GIVEN, "temperatures": (0.1, 0.6)}
    assert all(getattr(GenerationSettings(), name) != value for name, value in GIVEN.items())


def test_dspark_has_one_loss() -> None:
    found = invoke("train", "dspark", "--data", "text", "--out", "drafter", "--loss", "cross-entropy")
    assert found.exit_code == 2 and "distance" in found.stderr
