"""GPU kernels, each a public entry point that an engine can call without ours. Importing this loads no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from draftproof.kernels.arguments import Requests, Rows
    from draftproof.kernels.exceptions import Changes
    from draftproof.kernels.keyed import KeyedKernel, KeyedVerdict, draw, verify_keyed

__all__ = ["Changes", "KeyedKernel", "KeyedVerdict", "Requests", "Rows", "draw", "verify_keyed"]

_HOMES: Final = {"Changes": "exceptions", "Requests": "arguments", "Rows": "arguments"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'draftproof.kernels' has no attribute {name!r}")
    return getattr(import_module(f"draftproof.kernels.{_HOMES.get(name, 'keyed')}"), name)
