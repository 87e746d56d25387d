"""Sampling defaults that a model brings with it, in the file generation_config.json.

Rule, vLLM's: repetition_penalty, temperature, top_k, top_p, min_p and max_new_tokens (as max_tokens) of that file
replace SamplingParams' own defaults where a request leaves them unset. `generation_config` says where the file is:
"auto" with the model, "vllm" nowhere, else in that folder. do_sample is not read, as in vLLM: temperature 0 is
greedy, and nothing else is. A value that SamplingParams refuses is an error that names the file.
Deviation: vLLM leaves out values that equal transformers' defaults; here what the file says holds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from draftproof.errors import ModelError, ParameterError
from draftproof.params import SamplingParams

FILE_NAME: Final = "generation_config.json"
FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "repetition_penalty": "repetition_penalty",
        "temperature": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "max_new_tokens": "max_tokens",
    }
)
"""The file's name for a field -> SamplingParams' name."""


def default_sampling_fields(generation_config: str, model: str) -> dict[str, Any]:
    """The fields of SamplingParams that the model's file changes, with its values.

    generation_config: "auto", "vllm" or a folder. model: the folder, file or hub name that it was loaded from.
    Raises ParameterError for a folder without the file, ModelError for a file that can't be honoured.
    """
    if generation_config == "vllm":
        return {}
    path = _with_the_model(model) if generation_config == "auto" else _in_folder(generation_config)
    if path is None:
        return {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: given[key] for key, name in FIELDS.items() if given.get(key) is not None}
        params = SamplingParams(**fields)
    except (OSError, ValueError, AttributeError) as error:  # ParameterError is a ValueError
        hint = 'mend the file, or pass generation_config="vllm" to leave it out'
        raise ModelError(f"the sampling defaults in {path} can't be used: {error}; {hint}") from error
    plain = SamplingParams()
    return {name: getattr(params, name) for name in fields if getattr(params, name) != getattr(plain, name)}


def note_defaults(fields: Mapping[str, Any]) -> None:
    """One line on stderr that says which defaults the model replaces; nothing if it replaces none."""
    if fields:
        told = ", ".join(f"{name}={value}" for name, value in fields.items())
        print(
            f'note: defaults from the model\'s {FILE_NAME}: {told} (generation_config="vllm" leaves them out)',
            file=sys.stderr,
        )


def _in_folder(folder: str) -> Path:
    path = Path(folder).expanduser() / FILE_NAME
    if not path.is_file():
        raise ParameterError("generation_config", folder, f'"auto", "vllm" or a folder that holds {FILE_NAME}')
    return path


def _with_the_model(model: str) -> Path | None:
    path = Path(model).expanduser()
    if path.is_dir():
        return path / FILE_NAME if (path / FILE_NAME).is_file() else None
    if path.is_file() or not model:
        return None  # a GGUF file has no such file beside it
    from transformers.utils.hub import cached_file

    found = cached_file(model, FILE_NAME, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)
