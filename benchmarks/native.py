"""A CPU's products and attention in machine code (targets/native/) beside PyTorch's kernels, by the number of rows.

    python -m benchmarks.native [--threads 2] [--rounds 9] [--parts products attention forwards contexts]

products: the linear layers of the default model's 30 layers, random weights, and its output layer. attention: one
layer, 3 key heads of 64 numbers and 3 query heads each, by cached tokens. forwards: the default model after 200 tokens,
invariant, chains and trees. contexts: a prompt from nothing. The ways take turns, and medians of the rounds are
printed; the last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.first.common import machine
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.load import load_target
from draftproof.targets.native import attention, compiled
from draftproof.targets.native.attention import RowAttention
from draftproof.targets.streamed_linear import StreamedLinear

ROWS = (1, 2, 4, 6, 7, 9, 12, 16, 17, 24, 33, 64)
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
OUTPUTS = (49_152, 576)
NUM_LAYERS = 30
PARTS = ("products", "attention", "forwards", "contexts")
Times = dict[str, dict[str, float]]


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds; the first round isn't counted."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn:
                found[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in found.items()}


def products(rounds: int) -> Times:
    weights = [torch.randn(shape).bfloat16() for _ in range(NUM_LAYERS) for shape in SHAPES]
    layers: dict[str, list[Any]] = {
        "oneDNN": [PackedLinear(weight, None) for weight in weights],
        "native": [StreamedLinear(weight, None) for weight in weights],
    }
    head = torch.randn(OUTPUTS).bfloat16()
    heads: dict[str, Any] = {"oneDNN": PackedLinear(head, None), "native": StreamedLinear(head, None)}
    found = {}
    for num_rows in ROWS:
        features = {width: torch.randn(num_rows, width).bfloat16() for width in (576, 1536)}
        calls: dict[str, Callable[[], Any]] = {
            name: lambda own=own, features=features: [layer(features[layer.in_features]) for layer in own]  # type: ignore[misc]
            for name, own in layers.items()
        }
        for name, layer in heads.items():
            calls[f"{name}, output layer"] = lambda layer=layer, features=features: layer(features[576])  # type: ignore[misc]
        found[str(num_rows)] = medians(calls, rounds)
    return found


def attentions(rounds: int) -> Times:
    found = {}
    for num_cached in (192, 1024, 4096):
        shape = (NUM_LAYERS, 3, num_cached + 64, 64)
        group = SimpleNamespace(
            keys=torch.randn(shape).bfloat16(), values=torch.randn(shape).bfloat16(), layers=range(30)
        )
        cache: Any = SimpleNamespace(groups=[group], extents=SimpleNamespace(offsets=[0]))
        for num_rows in (1, 6, 16):
            query = torch.randn(num_rows, 9, 64).bfloat16()
            own = RowAttention(cache, [ScoreRequest(0, (0,) * num_rows)], [num_cached], num_rows)
            stacked = query.view(num_rows, 3, 3, 64).permute(1, 2, 0, 3).reshape(1, 3, -1, 64)
            mask = torch.zeros(1, 1, 3 * num_rows, shape[2]).bfloat16()

            def pytorch(group: Any = group, stacked: Any = stacked, mask: Any = mask) -> None:
                for layer in range(NUM_LAYERS):
                    keys, values = group.keys[layer : layer + 1], group.values[layer : layer + 1]
                    scaled_dot_product_attention(stacked, keys, values, attn_mask=mask)

            def native(own: Any = own, query: Any = query) -> None:
                for layer in range(NUM_LAYERS):
                    own(layer, query, None, 0.0)

            times = medians({"PyTorch": pytorch, "native": native}, rounds)
            found[f"{num_cached} cached, {num_rows}"] = {name: value / NUM_LAYERS for name, value in times.items()}
    return found


def targets() -> dict[str, Any]:
    """The default model, with PyTorch's kernels and with these."""
    with (
        mock.patch.object(compiled, "available", lambda: False),
        mock.patch.object(attention, "available", lambda: False),
    ):
        other = load_target(dtype="bfloat16", invariant=True, width=80)[0]
    return {"PyTorch": other, "native": load_target(dtype="bfloat16", invariant=True, width=80)[0]}


def forwards(rounds: int, loaded: dict[str, Any]) -> Times:
    source, found = random.Random(1), {}
    for target in loaded.values():
        target.release(0)
        target.prefill(0, range(1000, 1200))
    for num_rows in ROWS:
        parents = (-1, *(max(0, node - source.choice((1, 1, 1, 2, 3))) for node in range(1, num_rows)))

        def run(target: Any, tree: tuple[int, ...] | None, num_rows: int = num_rows) -> None:
            target.score([ScoreRequest(0, (5,) * num_rows, tree)])
            target.rewind(0, 200)

        calls = {
            f"{name}, {kind}": lambda target=target, tree=tree, run=run: run(target, tree)
            for name, target in loaded.items()
            for kind, tree in (("chain", None), ("tree", parents))
        }
        found[str(num_rows)] = medians(calls, rounds)  # type: ignore[arg-type]
    return found


def contexts(rounds: int, loaded: dict[str, Any]) -> Times:
    def run(target: Any, length: int) -> None:
        target.release(0)
        target.prefill(0, range(1000, 1000 + length))

    return {
        str(length): medians(
            {name: lambda target=target, length=length: run(target, length) for name, target in loaded.items()},  # type: ignore[misc]
            rounds,
        )
        for length in (64, 512, 2048, 4096)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not compiled.available():
        sys.exit(
            "this machine doesn't run them: AVX-512 BF16 without AMX, and `pip install 'draftproof[cpu]'`, are needed"
        )
    loaded = targets() if {"forwards", "contexts"} & set(args.parts) else {}
    found: dict[str, Times] = {}
    with torch.no_grad():
        for part in args.parts:
            if part in ("products", "attention"):
                found[part] = {"products": products, "attention": attentions}[part](args.rounds)
            else:
                rounds = args.rounds if part == "forwards" else min(args.rounds, 3)
                found[part] = {"forwards": forwards, "contexts": contexts}[part](rounds, loaded)
            print(f"\n{part}, milliseconds")
            for name, times in found[part].items():
                print(f"{name:>18}  " + "  ".join(f"{way} {value:.3f}" for way, value in times.items()), flush=True)
    print(json.dumps({"times": found, "machine": machine(), "threads": args.threads, "rounds": args.rounds}))


if __name__ == "__main__":
    main()
