"""Minutes of random joins, leaves, cancels and errors: no leak, no stuck request, no wrong stream.

    python -m benchmarks.endurance [--minutes 30] [--seed 0] [--target both|table|model]

The load alternates between a table target and a tiny transformers model with random weights under `invariant`, where
tokens and logprobs are compared bit for bit. Memory is what stays resident once the allocator has given back what is
free, with few compiled kernels kept. The last line on stdout is one JSON document; exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.endurance_load import Faults, Load
from draftproof.drafters.ngram import NgramDrafter
from draftproof.engine.request import Request
from draftproof.targets.hf import HFTarget
from draftproof.targets.products import pack_linears
from draftproof.targets.toy import TableTarget
from draftproof.verify.tables import LawTable

GROWTH_BAR_MB = 16.0
ROUND_STEPS = 400
WARM_ROUNDS = 6
MOST_KERNELS = "64"
"""oneDNN compiles its kernels for each number of rows and keeps 1,024 of them, and PyTorch as many of what leads to
them: half a gigabyte, filled for hours by new widths. With so few they are full soon, and what still grows is ours."""


class FaultyTable(Faults, TableTarget):
    """A table with faults."""


class FaultyModel(Faults, HFTarget):
    """A model with faults."""


def law_table() -> LawTable:
    """Laws over 6 tokens that depend on the whole context, so that one wrong entry shows."""

    def weights(context: Sequence[int]) -> list[float]:
        source = random.Random(f"endurance {tuple(context)}")
        raw = [source.random() ** 3 + 1e-3 for _ in range(6)]
        return [weight / sum(raw) for weight in raw]

    return LawTable(6, weights, exact=False)


def tiny_model() -> Any:
    """A Llama of two layers with random weights, packed."""
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.random.manual_seed(1)
        model = transformers.LlamaForCausalLM(config).eval()
    pack_linears(model)
    return model


def table_targets() -> list[FaultyTable]:
    """The one that all share and the one for a request alone, over a table of their own: it keeps every row it made.

    The longest prompts reach the model length, which is the same for both.
    """
    table, length = law_table(), {"max_model_len": 64}
    return [FaultyTable(table, num_slots=4, max_num_cached_tokens=160, **length), FaultyTable(table, **length)]


def loads(seed: int, which: str) -> Iterator[Load]:
    """One engine after another, with other limits each time; the models are the same ones throughout."""
    source = random.Random(seed)
    models: list[FaultyModel] = []
    if which != "table":
        limits: dict[str, Any] = {"max_model_len": 320, "invariant": True}
        # Room for two long requests and two short ones: some are pushed out.
        models = [
            FaultyModel(tiny_model(), num_slots=5, max_num_cached_tokens=1536, **limits),
            FaultyModel(tiny_model(), **limits),
        ]
    while True:
        for name in ("table", "model"):
            if which not in ("both", name):
                continue
            targets: Sequence[Any] = table_targets() if name == "table" else models
            yield Load(
                targets[0],
                lambda targets=targets: targets[1],  # type: ignore[misc]
                NgramDrafter(1, 3) if source.random() < 0.8 else None,
                seed=source.randrange(1 << 30),
                longest=30 if name == "table" else 270,
                tokens=source.randrange(1, 7),
                max_num_batched_tokens=source.randrange(12, 64) if name == "table" else source.randrange(12, 600),
                max_num_waiting=source.randrange(2, 12),
                enable_prefix_caching=source.random() < 0.8,
            )


def run(minutes: float, seed: int, which: str, say: Any) -> dict[str, Any]:
    """The load for so long; memory is compared with what it was after a fifth of the time, and after WARM_ROUNDS."""
    began, base, base_round, wrong = time.monotonic(), 0.0, 0, []
    num_before = num_requests_alive()
    totals = dict.fromkeys(("rounds", "steps", "requests", "tokens", "failed", "refused", "preempted", "reused"), 0)
    for load in loads(seed, which):
        while load.num_steps < ROUND_STEPS and time.monotonic() - began < 60 * minutes:
            load.turn()
        load.drain()
        wrong += load.wrong
        totals["rounds"] += 1
        for name, value in (
            ("steps", load.num_steps),
            ("requests", load.num_checked),
            ("tokens", load.num_tokens),
            ("failed", load.num_failed),
            ("refused", load.num_refused),
            ("preempted", load.engine.scheduler.num_preemptions),
            ("reused", load.engine.slots.num_reused_tokens),
        ):
            totals[name] += value
        del load
        gc.collect()
        spent = time.monotonic() - began
        if not base_round and spent > 12 * minutes and totals["rounds"] >= WARM_ROUNDS:
            base, base_round = resident_mb(), totals["rounds"]
        say(f"{spent:.0f} s: {totals}, {len(wrong)} wrong, {resident_mb():.1f} MB")
        if spent >= 60 * minutes:
            break
    # A run too short to have warmed up says nothing about memory.
    growth = resident_mb() - base if base_round and totals["rounds"] >= base_round + WARM_ROUNDS else None
    left = num_requests_alive() - num_before
    return {
        "minutes": minutes,
        "seed": seed,
        "target": which,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **totals,
        "wrong": wrong[:20],
        "num_wrong": len(wrong),
        "memory_growth_mb": growth,
        "memory_bar_mb": GROWTH_BAR_MB,
        "requests_left": left,
        "holds": not wrong and left == 0 and (growth is None or growth <= GROWTH_BAR_MB),
    }


def num_requests_alive() -> int:
    """How many requests this process holds."""
    gc.collect()
    return sum(type(thing) is Request for thing in gc.get_objects())


def resident_mb() -> float:
    """This process's resident memory, in MB, after the allocator has given back what it can; 0 where the system
    doesn't say."""
    gc.collect()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):
        return 0.0
    return pages * 4096 / 1e6


def main() -> int:
    """Runs the load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=("both", "table", "model"), default="both")
    given = parser.parse_args()
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, MOST_KERNELS)
    torch.set_num_threads(1)
    result = run(given.minutes, given.seed, given.target, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
