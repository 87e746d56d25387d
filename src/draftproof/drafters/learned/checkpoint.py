"""A drafter's checkpoint: its config.json and its tensors by name, read one at a time, with errors that name them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftproof.errors import ModelError

_SOURCES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")


class Checkpoint:
    """`config` is the parsed config.json; `tensor(name)` reads one tensor.

    Matrices of 8-bit integers with a scale for each row, as compressed-tensors writes them (X int8 [rows, n] and
    X_scale [rows, 1]), are read as X · X_scale in float32; the scales are no tensors of their own then.
    Raises ModelError for a folder without a config or weights, or with a file that is truncated or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _read_json(folder / "config.json")
        found = next((folder / name for name in _SOURCES if (folder / name).is_file()), None)
        if found is None:
            raise ModelError(f"the folder {folder} holds no weights; looked for {', '.join(_SOURCES)}")
        self._files: dict[str, Path] = {}
        self._pickled: dict[Path, dict[str, torch.Tensor]] = {}
        if found.name.endswith(".index.json"):
            for name, file in _read_json(found).get("weight_map", {}).items():
                self._files[name] = folder / str(file)
        else:
            self._files = dict.fromkeys(self._names_in(found), found)
        self._scales = {
            name: f"{name}_scale" for name in self._files if name.endswith("weight") and f"{name}_scale" in self._files
        }

    @classmethod
    def locate(cls, model: str) -> Checkpoint:
        """The checkpoint of a local folder, or of a hub name (fetched, or taken from the hub's own cache)."""
        folder = Path(model).expanduser()
        if folder.is_dir():
            return cls(folder)
        if folder.exists() or folder.is_absolute() or model.count("/") != 1 or model.startswith((".", "~")):
            raise ModelError(f"no folder at {model!r}; give a drafter's folder, or a hub name owner/model")
        from huggingface_hub import snapshot_download

        try:
            patterns = ["*.json", "*.safetensors", "*.bin"]
            return cls(Path(snapshot_download(model, allow_patterns=patterns)))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ModelError(f"the drafter {model!r} can't be fetched: {reason}; give a local folder") from error

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors' names."""
        scales = set(self._scales.values())
        return tuple(name for name in self._files if name not in scales)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, from its file's header."""
        path = self._files[name]
        if path.suffix == ".bin":
            return tuple(self._load_pickled(path)[name].shape)
        with self._open(path) as file:
            return tuple(file.get_slice(name).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in its file's dtype. Raises ModelError where it is absent or damaged."""
        found = self._stored(name)
        if name not in self._scales:
            return found
        scale = self._stored(self._scales[name])
        if found.dtype != torch.int8 or found.ndim != 2 or tuple(scale.shape) != (len(found), 1):
            raise ModelError(
                f"{self.folder}: {self._scales[name]} has shape {tuple(scale.shape)}, and {name} is {found.dtype} of "
                f"shape {tuple(found.shape)}; read are torch.int8 [rows, n] with scales [rows, 1]"
            )
        return found.float() * scale.float()

    def _stored(self, name: str) -> torch.Tensor:
        path = self._files.get(name)
        if path is None:
            raise ModelError(f"{self.folder}: the tensor {name} is missing; get the checkpoint anew")
        if path.suffix == ".bin":
            return self._load_pickled(path)[name]
        try:
            with self._open(path) as file:
                found: torch.Tensor = file.get_tensor(name)
        except Exception as error:
            if type(error).__name__ != "SafetensorError":
                raise
            raise _damaged(path, error) from error
        return found

    def _names_in(self, path: Path) -> Iterable[str]:
        if path.suffix == ".bin":
            return list(self._load_pickled(path))
        with self._open(path) as file:
            return list(file.keys())

    def _open(self, path: Path) -> Any:
        from safetensors import safe_open

        try:
            return safe_open(str(path), framework="pt")
        except FileNotFoundError as error:
            raise ModelError(f"the checkpoint's index names {path.name}, which is not in {self.folder}") from error
        except Exception as error:
            if type(error).__name__ != "SafetensorError":
                raise
            raise _damaged(path, error) from error

    def _load_pickled(self, path: Path) -> dict[str, torch.Tensor]:
        if path not in self._pickled:
            try:
                self._pickled[path] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except Exception as error:
                raise _damaged(path, error) from error
        return self._pickled[path]


def load_into(
    module: nn.Module,
    checkpoint: Checkpoint,
    rename: Callable[[str], str | None],
    *,
    given: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Fill every parameter and buffer of `module` from the checkpoint.

    rename: a checkpoint's tensor name to the module's, None for tensors that aren't wanted. given: tensors that were
    read and reshaped already, by the module's names.
    Raises ModelError, which names the tensor, the shape found and the shape expected, for a tensor that is missing,
    has another shape, is unknown to the module, or holds NaN or infinity.
    """
    sources = {new: old for old in checkpoint.names if (new := rename(old)) is not None}
    given = given or {}
    expected = dict(module.state_dict())
    where = checkpoint.folder
    for name, slot in expected.items():
        shape = tuple(slot.shape)
        if name not in given and name not in sources:
            raise ModelError(f"{where}: the tensor {name} of shape {shape} is missing; get the checkpoint anew")
        found = tuple(given[name].shape) if name in given else checkpoint.shape(sources[name])
        if found != shape:
            raise ModelError(
                f"{where}: the tensor {sources.get(name, name)} has shape {found}, and the configuration asks for "
                f"{shape}; the checkpoint and its config.json, or the checkpoint and this target, don't belong together"
            )
    unknown = sorted(set(sources) - set(expected))
    if unknown:
        shown = ", ".join(f"{sources[name]} {checkpoint.shape(sources[name])}" for name in unknown[:4])
        raise ModelError(
            f"{where}: this drafter's layout has no place for {len(unknown)} of the checkpoint's tensors: {shown}; "
            "it may need a later release of draftproof"
        )
    for name, slot in expected.items():
        tensor = given[name] if name in given else checkpoint.tensor(sources[name])
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{where}: the tensor {sources.get(name, name)} holds NaN or infinite values")
        with torch.no_grad():
            slot.copy_(tensor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"no {path.name} in {path.parent}: a drafter's folder holds one") from error
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} holds no JSON object")
    return found


def _damaged(path: Path, error: Exception) -> ModelError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ModelError(f"{path} is truncated or damaged ({reason}); get the file anew")
