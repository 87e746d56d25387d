"""scipy, which only the audit needs; absent, the error names the command that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from draftproof import MissingExtraError

COMMAND = "pip install 'draftproof[audit]'"


def special() -> Any:
    """scipy.special."""
    return _scipy("special")


def stats() -> Any:
    """scipy.stats."""
    return _scipy("stats")


def _scipy(part: str) -> Any:
    try:
        return import_module(f"scipy.{part}")
    except ImportError:
        raise MissingExtraError("the audit", "scipy", COMMAND) from None
