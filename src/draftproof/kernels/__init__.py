"""GPU kernels, each a public entry point that an engine can call without ours. Importing this loads no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from draftproof.kernels.arguments import Requests, Rows
    from draftproof.kernels.exceptions import Changes
    from draftproof.kernels.keyed import KeyedKernel, draw, verify_keyed
    from draftproof.kernels.probs import TargetProbsKernel, target_probs
    from draftproof.kernels.ratio.launches import RatioKernel
    from draftproof.kernels.ratio.laws import DraftLaws
    from draftproof.kernels.ratio.verify import verify_block, verify_rejection
    from draftproof.kernels.verdict import KernelVerdict

__all__ = [
    "Changes",
    "DraftLaws",
    "KernelVerdict",
    "KeyedKernel",
    "RatioKernel",
    "Requests",
    "Rows",
    "TargetProbsKernel",
    "draw",
    "target_probs",
    "verify_block",
    "verify_keyed",
    "verify_rejection",
]

_HOMES: Final = {
    "Changes": "exceptions",
    "DraftLaws": "ratio.laws",
    "KernelVerdict": "verdict",
    "RatioKernel": "ratio.launches",
    "Requests": "arguments",
    "Rows": "arguments",
    "TargetProbsKernel": "probs",
    "target_probs": "probs",
    "verify_block": "ratio.verify",
    "verify_rejection": "ratio.verify",
}
"""Modules of what isn't in `keyed`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'draftproof.kernels' has no attribute {name!r}")
    return getattr(import_module(f"draftproof.kernels.{_HOMES.get(name, 'keyed')}"), name)
