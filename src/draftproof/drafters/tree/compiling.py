"""Says on a terminal that something is being compiled, where that takes longer than a moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

MOMENT: Final = 1.0
"""Seconds: what was compiled before is found sooner."""


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Around the compilation of `what`."""
    if not sys.stderr.isatty():
        yield
        return
    told = Timer(MOMENT, lambda: print(f"compiling {what}, once on a machine ...", file=sys.stderr, flush=True))
    told.daemon = True
    told.start()
    try:
        yield
    finally:
        told.cancel()
