"""The command line: one verb per file. `main` is the click group; printing help loads no torch."""

from draftproof.cli.root import main

__all__ = ["main"]
