"""A run's state on disk: written whole under another name, then renamed, so that a kill at any time loses little.

`training/state.pt` holds the step, the weights, the optimizer and the seconds trained; the drafter's folder beside it
is a complete checkpoint of the same moment. Random numbers and batches are functions of (seed, step), so a resumed run
ends with the same bits as one that was never interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from draftproof.errors import ModelError, ParameterError
from draftproof.train.settings import TrainSettings

# Settings that may differ between the parts of one run.
_MAY_DIFFER = ("num_steps", "minutes", "checkpoint_seconds", "evaluate_every", "compile")


def write_state(
    folder: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    step: int,
    seconds: float,
) -> None:
    """Replace the state of the run in `folder`."""
    path = folder / "training" / "state.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "step": step,
        "seconds": seconds,
        "settings": asdict(settings),
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    work = path.with_suffix(".tmp")
    torch.save(state, work)
    os.replace(work, path)


def read_state(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer, settings: TrainSettings
) -> tuple[int, float]:
    """(step, seconds) of the run in `folder`, whose weights and optimizer are taken over; (0, 0.0) without one.

    Raises ParameterError where the run was begun with other settings, ModelError where its state can't be read.
    """
    path = folder / "training" / "state.pt"
    if not path.is_file():
        return 0, 0.0
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(f"{path} can't be read ({error}); delete the folder to begin anew") from error
    begun, asked = dict(state["settings"]), asdict(settings)
    for name in asked:
        was = begun.get(name)
        was = tuple(was) if isinstance(was, list) else was
        if name not in _MAY_DIFFER and was != asked[name]:
            raise ParameterError(
                name, asked[name], f"{was!r}, as when the run in {folder} was begun", "or name another --out"
            )
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), float(state["seconds"])


def write_drafter(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16
) -> int:
    """Write config.json and model.safetensors, floats in `dtype`; the size of the weights in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in tensors.items()
    }
    save_file(kept, str(folder / ".model.tmp"), metadata={"format": "pt"})
    (folder / ".config.tmp").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
    os.replace(folder / ".model.tmp", folder / "model.safetensors")
    os.replace(folder / ".config.tmp", folder / "config.json")
    return (folder / "model.safetensors").stat().st_size
