"""Twenty prompts of each of six kinds, written for this project and never trained on; `--prompts` takes others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from draftproof.bench.trees import Prompt, read_prompts

KINDS: Final = ("chat", "code", "maths", "summarise", "rewrite", "JSON")


def built_in(num_per_kind: int | None = None) -> list[Prompt]:
    """The first so many of each kind, or all."""
    return read_prompts(Path(__file__).with_name("prompts.jsonl"), num_per_kind)


BUILT_IN: Final = tuple(built_in(2))
"""Two of each kind, for a first look."""
