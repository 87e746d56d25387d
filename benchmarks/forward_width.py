"""Milliseconds of one forward by its width: ours (plain, packed, invariant, trees, weights in float16) against
transformers' own cache.

    python benchmarks/forward_width.py [--model FOLDER] [--dtypes float32 bfloat16] [--widths 1 2 4 …] [--threads 1 2]

Each forward appends `width` tokens to a cache of `--context` tokens, which is taken back afterwards. The variants
take turns within each round, and the least over rounds is printed, with its quotient by the variant's own width 1:
other processes only ever add time. With one thread the process's own time is taken, so that a load on the machine
doesn't count. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import transformers
from transformers.cache_utils import DynamicCache

from draftproof.targets.base import ScoreRequest
from draftproof.targets.dtype import can_halve
from draftproof.targets.embedded import embedded_folder
from draftproof.targets.fused import fuse_projections
from draftproof.targets.half_linear import HalfLinear, round_weights
from draftproof.targets.hf import HFTarget
from draftproof.targets.products import pack_linears, product_kind
from draftproof.targets.shapes import FixedShapes, Shapes

FIXED_WIDTH = 16
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64)
LEVEL = 6
"""A tree's node hangs from one of so many before it."""


def transformers_step(model: Any, context: list[int]) -> Callable[[int], None]:
    """One forward through a DynamicCache, as `generate` runs it after its prefill."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.tensor([context], device=model.device), cache=cache, use_cache=True)

    @torch.no_grad()
    def step(width: int) -> None:
        ids = torch.full((1, width), 5, device=model.device)
        model(input_ids=ids, cache=cache, use_cache=True)
        cache.crop(-width)

    return step


def our_step(target: HFTarget, context: list[int], *, tree: bool = False) -> Callable[[int], None]:
    target.release(0)
    target.prefill(0, context)
    source, parents = random.Random(0), [-1]
    parents += [source.randrange(max(0, node - LEVEL), node) for node in range(1, target.max_model_len)]

    def step(width: int) -> None:
        length, done = target.length(0), 0
        while done < width:
            size = min(width - done, target.room(0))
            target.score([ScoreRequest(0, (5,) * size, tuple(parents[:size]) if tree else None)])
            done += size
            if tree:
                target.rewind(0, length)
        target.rewind(0, length)

    return step


def variants(folder: str, dtype: torch.dtype, device: torch.device, context: list[int]) -> dict[str, Any]:
    def load() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()

    steps: dict[str, Any] = {"transformers": transformers_step(load(), context)}
    plain = HFTarget(load())
    steps["exact shapes"] = our_step(plain, context)
    model, product = load(), product_kind(dtype, device, invariant=True, halves=False)
    suffix = "" if product is None else ", packed"
    if product is not None:
        fuse_projections(model, product)
        pack_linears(model, product)
    ours = HFTarget(model, invariant=True)

    if dtype == torch.float32 and can_halve(device):
        for name, invariant in (("weights in float16", False), ("  invariant", True)):
            model = load()
            round_weights(model)
            fuse_projections(model, HalfLinear)
            pack_linears(model, HalfLinear)
            steps[name] = our_step(HFTarget(model, invariant=invariant), context)

    def with_shapes(shapes: Shapes) -> HFTarget:
        target = copy.copy(ours)
        target.shapes = shapes
        target._reset(target.num_columns(len(context) + max(WIDTHS)))
        return target

    if suffix:
        steps["exact shapes, packed"] = our_step(with_shapes(plain.shapes), context)
    steps[ours.shapes.name + suffix] = our_step(ours, context)
    steps["  its trees"] = our_step(with_shapes(ours.shapes), context, tree=True)
    if not isinstance(ours.shapes, FixedShapes):
        fixed = FixedShapes(FIXED_WIDTH)
        steps[fixed.name + suffix] = our_step(with_shapes(fixed), context)
    return steps


def milliseconds(step: Callable[[int], None], width: int, device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    step(width)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (clock() - start)


def measure(steps: dict[str, Any], widths: list[int], rounds: int, device: torch.device) -> dict[str, dict[int, float]]:
    """By variant and width; the first round isn't counted."""
    least: dict[str, dict[int, float]] = {step: dict.fromkeys(widths, inf) for step in steps}
    for turn in range(rounds + 1):
        for step, row in least.items():
            for width in widths:
                took = milliseconds(steps[step], width, device)
                if turn:
                    row[width] = min(row[width], took)
    return {step: {width: round(value, 2) for width, value in row.items()} for step, row in least.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", help="a folder; the embedded model by default")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", nargs="+", type=int, default=[torch.get_num_threads()])
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    folder = arguments.model or str(embedded_folder())
    context = [int(token) for token in torch.randint(100, 20000, (arguments.context,), generator=torch.manual_seed(1))]
    results: dict[str, dict[str, dict[int, float]]] = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name in arguments.dtypes:
            title = f"{name}, {threads} threads"
            steps = variants(folder, getattr(torch, name), device, context)
            results[title] = measure(steps, arguments.widths, arguments.rounds, device)
            print(f"\n{title}, milliseconds a forward at {arguments.context} cached tokens")
            print(f"{'width':58}" + "".join(f"{width:7}" for width in arguments.widths))
            for step, row in results[title].items():
                print(f"{step:58}" + "".join(f"{row[width]:7.1f}" for width in arguments.widths))
                first = row[arguments.widths[0]]
                print(f"{'':58}" + "".join(f"{row[width] / first:7.2f}" for width in arguments.widths), flush=True)
    document = {
        "benchmark": "forward_width",
        "milliseconds": results,
        "context": arguments.context,
        "rounds": arguments.rounds,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
