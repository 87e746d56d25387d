"""GPU kernels, each a public entry point that an engine can call without ours. Importing this loads no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from draftproof.kernels.arguments import Requests, Rows
    from draftproof.kernels.block import block_kernel, verify_block
    from draftproof.kernels.exceptions import Changes
    from draftproof.kernels.keyed import KeyedKernel, KeyedVerdict, draw, verify_keyed
    from draftproof.kernels.probs import TargetProbsKernel, target_probs
    from draftproof.kernels.ratio.launches import RatioKernel
    from draftproof.kernels.ratio.laws import DraftLaws
    from draftproof.kernels.rejection import rejection_kernel, verify_rejection
    from draftproof.kernels.verdict import KernelVerdict

__all__ = [
    "Changes",
    "DraftLaws",
    "KernelVerdict",
    "KeyedKernel",
    "KeyedVerdict",
    "RatioKernel",
    "Requests",
    "Rows",
    "TargetProbsKernel",
    "block_kernel",
    "draw",
    "rejection_kernel",
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
    "block_kernel": "block",
    "rejection_kernel": "rejection",
    "target_probs": "probs",
    "verify_block": "block",
    "verify_rejection": "rejection",
}
"""Modules of what isn't in `keyed`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'draftproof.kernels' has no attribute {name!r}")
    return getattr(import_module(f"draftproof.kernels.{_HOMES.get(name, 'keyed')}"), name)
