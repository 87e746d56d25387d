"""Flags and models that the benchmarks of trees share."""

from __future__ import annotations

import argparse
from typing import Any

from draftproof.targets.load import load_target

WIDEST = 80


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """The drafter, the sampling and the machine."""
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--model", help="a drafter's folder; draft_model without one is three of the target's layers")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--width", type=int, default=WIDEST, help="the most tokens of a forward")


def open_target(args: argparse.Namespace, *, num_slots: int = 1) -> tuple[Any, Any]:
    """The embedded model, `invariant` for every width up to --width."""
    target, tokenizer = load_target(dtype=args.dtype, invariant=True, num_slots=num_slots, width=args.width)
    if getattr(args, "copies", False):
        target.keep_branches_in_place(False)
    return target, tokenizer
