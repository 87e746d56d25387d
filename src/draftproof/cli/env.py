"""`draftproof env`: what a bug report needs."""

from __future__ import annotations

import os
import platform
from typing import Any

from draftproof.cli.loading import versions
from draftproof.cli.output import new_table, print_document, print_table
from draftproof.cli.verb import verb
from draftproof.errors import DraftproofError

EXAMPLES = ("draftproof env", "draftproof env --json")


@verb("env", examples=EXAMPLES)
def env(**given: Any) -> None:
    """Show versions and devices.

    Versions, devices, number formats, threads and the embedded model: what a bug report needs.
    """
    found = environment()
    if given["json"]:
        print_document(found)
        return
    table = new_table("what", "value")
    for name, value in found["versions"].items():
        table.add_row(name, value or "not installed")
    for name, value in found.items():
        if name != "versions":
            table.add_row(name, _words(value))
    print_table(table)


def environment() -> dict[str, Any]:
    """Plain values. Devices are listed, not started up."""
    import torch

    from draftproof.targets.dtype import can_halve, cpu_has_bf16
    from draftproof.targets.embedded import cache_folder

    has_cuda = torch.cuda.is_available()
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "device": "cuda" if has_cuda else "cpu",
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if has_cuda else [],
        "cpu_bf16_in_hardware": cpu_has_bf16(),
        "cpu_float16_weights": can_halve(torch.device("cpu")),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": torch.get_num_threads(),
        "num_cpus": os.cpu_count(),
        "cache_folder": str(cache_folder()),
        **_embedded_model(),
    }


def _embedded_model() -> dict[str, Any]:
    from draftproof.targets.embedded import gguf_path

    try:
        return {"embedded_model": str(gguf_path()), "embedded_model_present": True}
    except DraftproofError as error:
        return {"embedded_model": str(error), "embedded_model_present": False}


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)
