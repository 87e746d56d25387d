"""Milliseconds of one forward by its width: ours (plain, packed, invariant) against transformers' own cache.

    python benchmarks/forward_width.py [--model FOLDER] [--dtypes float32 bfloat16] [--widths 1 2 4 8 9 16 17 32]

Each forward appends `width` tokens to a cache of `--context` tokens, which is taken back afterwards. The variants
take turns within each round, and the median over rounds is printed, so that a load on the machine meets all alike.
The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
import transformers
from transformers.cache_utils import DynamicCache

from draftproof.targets.base import ScoreRequest
from draftproof.targets.cpu_linear import can_pack, pack_linears
from draftproof.targets.embedded import embedded_folder
from draftproof.targets.hf import HFTarget
from draftproof.targets.shapes import FixedShapes, StepShapes

FIXED_WIDTH = 16


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


def our_step(target: HFTarget, context: list[int]) -> Callable[[int], None]:
    target.prefill(0, context)

    def step(width: int) -> None:
        length, done = target.length(0), 0
        while done < width:
            size = min(width - done, target.room(0))
            target.score([ScoreRequest(0, (5,) * size)])
            done += size
        target.rewind(0, length)

    return step


def variants(folder: str, dtype: torch.dtype, device: torch.device, context: list[int]) -> dict[str, Any]:
    def load() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()

    steps: dict[str, Any] = {"transformers": transformers_step(load(), context)}
    plain = HFTarget(load())
    steps["exact shapes"] = our_step(plain, context)
    model, suffix = load(), ", packed" if can_pack(dtype, device) else ""
    if suffix:
        pack_linears(model)
    ours = HFTarget(model)
    if suffix:
        steps["exact shapes, packed"] = our_step(ours, context)
    for shapes in (StepShapes(), FixedShapes(FIXED_WIDTH)):
        target = copy.copy(ours)
        target.shapes = shapes
        target._reset()
        steps[shapes.name + suffix] = our_step(target, context)
    return steps


def milliseconds(step: Callable[[int], None], width: int, device: torch.device) -> float:
    start = time.perf_counter()
    step(width)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", help="a folder; the embedded model by default")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--widths", nargs="+", type=int, default=[1, 2, 4, 8, 9, 16, 17, 32])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    folder = arguments.model or str(embedded_folder())
    context = [int(token) for token in torch.randint(100, 20000, (arguments.context,), generator=torch.manual_seed(1))]
    results: dict[str, dict[str, dict[int, float]]] = {}
    for name in arguments.dtypes:
        steps = variants(folder, getattr(torch, name), device, context)
        times: dict[tuple[str, int], list[float]] = {(step, width): [] for step in steps for width in arguments.widths}
        for turn in range(arguments.rounds + 1):
            for step, width in times:
                took = milliseconds(steps[step], width, device)
                if turn:
                    times[step, width].append(took)
        results[name] = {step: {} for step in steps}
        for (step, width), values in times.items():
            results[name][step][width] = round(statistics.median(values), 2)
        print(f"\n{name}, milliseconds a forward at {arguments.context} cached tokens")
        print(f"{'width':28}" + "".join(f"{width:9}" for width in arguments.widths))
        for step, row in results[name].items():
            print(f"{step:28}" + "".join(f"{row[width]:9.1f}" for width in arguments.widths), flush=True)
    document = {
        "benchmark": "forward_width",
        "milliseconds": results,
        "context": arguments.context,
        "rounds": arguments.rounds,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
