"""Training text on disk: shards of token ids in safetensors, each written whole or not at all.

A shard holds documents one after the other: `token_ids` [N] int32, `sampled` [N] bool (the token is the target's own,
not a prompt's), `lengths` [documents] int32. Its metadata says which target, seed and settings made it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from draftproof.errors import ModelError, ParameterError


@dataclass(frozen=True, slots=True)
class Document:
    """token_ids [n]; sampled [n]: is the token the target's own?"""

    token_ids: NDArray[np.int64]
    sampled: NDArray[np.bool_]


def shard_path(folder: Path, index: int) -> Path:
    """Where shard `index` lies."""
    return folder / f"shard-{index:05d}.safetensors"


def write_shard(path: Path, documents: list[Document], metadata: Mapping[str, object]) -> None:
    """Write under another name, then rename: a shard that is there is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        "token_ids": torch.from_numpy(np.concatenate([d.token_ids for d in documents]).astype(np.int32)),
        "sampled": torch.from_numpy(np.concatenate([d.sampled for d in documents])),
        "lengths": torch.tensor([len(d.token_ids) for d in documents], dtype=torch.int32),
    }
    work = path.with_suffix(".tmp")
    save_file(tensors, str(work), metadata={"draftproof": json.dumps(dict(metadata))})
    os.replace(work, path)


def read_metadata(path: Path) -> dict[str, object]:
    """What the shard says about itself."""
    with safe_open(str(path), framework="pt") as file:
        found: dict[str, object] = json.loads((file.metadata() or {}).get("draftproof", "{}"))
    return found


class Corpus:
    """All documents of a folder's shards, in order.

    Raises ParameterError for a folder without shards, ModelError for a damaged one or for token ids that the target
    doesn't have.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        paths = sorted(folder.glob("shard-*.safetensors")) if folder.is_dir() else []
        if not paths:
            raise ParameterError("data", str(folder), "a folder that `draftproof train data` has written")
        token_ids, sampled, lengths = [], [], []
        for path in paths:
            try:
                tensors = load_file(str(path))
            except Exception as error:
                raise ModelError(
                    f"{path} is truncated or damaged ({error}); delete it and make the data anew"
                ) from error
            token_ids.append(tensors["token_ids"].numpy())
            sampled.append(tensors["sampled"].numpy())
            lengths.append(tensors["lengths"].numpy())
        self._token_ids, self._sampled = np.concatenate(token_ids), np.concatenate(sampled)
        self._ends = np.cumsum(np.concatenate(lengths).astype(np.int64))
        largest = int(self._token_ids.max())
        if largest >= vocab_size:
            raise ModelError(
                f"{folder}: the text has token id {largest}, the target {vocab_size}: another target's text"
            )
        self.num_tokens = len(self._token_ids)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Document:
        end = int(self._ends[index])
        start = int(self._ends[index - 1]) if index else 0
        return Document(self._token_ids[start:end].astype(np.int64), self._sampled[start:end])

    def counts(self, vocab_size: int) -> NDArray[np.int64]:
        """[vocab_size] how often each token was sampled: what a reduced vocabulary is chosen by."""
        found: NDArray[np.int64] = np.bincount(self._token_ids[self._sampled], minlength=vocab_size)
        return found

    def lengths(self) -> Iterator[int]:
        """Of the documents, in order."""
        return iter(np.diff(self._ends, prepend=0).tolist())
