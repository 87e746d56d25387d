"""Loads what `train` writes with the packagings' own code, and writes down which tensors that code fills from it.

Run in an environment that has the packages (versions are written into the file):

    pip install --no-deps dflash==0.1.0 specforge==0.2.0 speculators==0.9.0
    python -m tests.train.make_readers

Fails where a reader finds a tensor of another shape, one that it has no place for, or misses one, except for the
embedding that SpecForge copies from the target afterwards. What speculators imports and a model class doesn't need
(clients of servers, data sets) is replaced by stubs. DeepSpec, the packaging of a dspark with the whole vocabulary, is
on no package index; for an MTP layer of a Llama there is no other reader.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed.tensor  # noqa: F401  (before the stubs, which its own look at `sys.modules` trips over)
import transformers
from safetensors.torch import load_file

from draftproof.train import loop
from draftproof.train.generate import generate_corpus
from draftproof.train.settings import TrainSettings
from tests.train.conftest import PROMPTS, SETTINGS, TURNS, make_target

FILE = Path(__file__).with_name("readers.json")
_STUBS = ("openai", "datasets", "hs_connectors", "loguru", "deepmerge", "speculators.train.data")
_SHARED: dict[str, Any] = {
    "num_steps": 1, "rows": 2, "row_length": 32, "num_anchors": 6, "block_size": 4, "markov_rank": 4,
    "num_steps_ahead": 2,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "dflash, z-lab": {"method": "dflash"},
    "dflash, SpecForge": {"method": "dflash"},
    "dflash, speculators": {"method": "dflash", "draft_vocab_size": 20},
    "dspark, speculators": {"method": "dspark", "draft_vocab_size": 20},
    "eagle3, SpecForge": {"method": "eagle3", "draft_vocab_size": 20, "tap_ids": (1, 2, 3)},
}
"""name -> settings. The word behind the comma is the reader."""


def settings_of(name: str) -> TrainSettings:
    return TrainSettings(**_SHARED, **CASES[name])


def _reader(name: str) -> tuple[str, Callable[..., Any], set[str]]:
    """(the package, its class's from_pretrained, tensors that it takes from elsewhere)."""
    if name.endswith("z-lab"):
        from dflash.model import DFlashDraftModel

        return "dflash", DFlashDraftModel.from_pretrained, set()
    if name.endswith("SpecForge"):
        from specforge.modeling.auto import AutoDraftModel

        return "specforge", AutoDraftModel.from_pretrained, {"embed_tokens.weight"} if "eagle3" in name else set()
    for stub in _STUBS:
        module = MagicMock()
        module.__spec__ = importlib.machinery.ModuleSpec(stub, None)
        sys.modules.setdefault(stub, module)
    import speculators

    kind = "DSparkDraftModel" if "dspark" in name else "DFlashDraftModel"
    return "speculators", getattr(speculators, kind).from_pretrained, set()


def _point_at(folder: Path, target: Path) -> None:
    """speculators opens the target that the configuration names."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if "speculators_config" in config:
        config["speculators_config"]["verifier"]["name_or_path"] = str(target)
        path.write_text(json.dumps(config), encoding="utf-8")


def main() -> None:
    target, found = make_target(), {}
    with tempfile.TemporaryDirectory() as work:
        text, saved = Path(work) / "text", Path(work) / "target"
        target.model.save_pretrained(saved)
        list(generate_corpus(target, TURNS, PROMPTS, text, SETTINGS, num_tokens=1500))
        for name in CASES:
            folder = Path(work) / name
            loop.train(make_target(), text, folder, settings_of(name))
            _point_at(folder, saved)
            package, read, elsewhere = _reader(name)
            model, info = read(str(folder), output_loading_info=True)
            wrong = {key: value for key, value in info.items() if value and key != "missing_keys"}
            assert not wrong and set(info["missing_keys"]) <= elsewhere, (name, info)
            state, tensors = model.state_dict(), load_file(str(folder / "model.safetensors"))
            for key, tensor in tensors.items():
                assert torch.equal(state[key].to(tensor.dtype), tensor), (name, key)
            version = f"{package} {importlib.metadata.version(package)}, transformers {transformers.__version__}"
            found[name] = {"reader": version, "tensors": {key: list(tensors[key].shape) for key in sorted(tensors)}}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in found.items())
    FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
