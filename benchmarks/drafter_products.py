"""Products of a drafter's narrow forwards: as a target's on this machine against 8 bits, milliseconds of processor
time a call.

Weights come from memory, as between two passes of a target: there are more of them than caches hold. Run it with one
thread. Shapes: those of the embedded model's DSpark, queries, keys and values joined, gate and up joined.
"""

from __future__ import annotations

import argparse
from time import process_time

import torch

from draftproof.drafters.learned.eight_bit import EightBitLinear
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.dtype import resolve_format
from draftproof.targets.products import product_kind

SHAPES = {"q, k, v": (960, 576), "out": (576, 576), "gate, up": (3072, 576), "down": (576, 1536), "head": (16384, 576)}
ROWS = (1, 2, 4, 5, 6, 8)
CACHE_BYTES = 64 << 20


def least_ms(products: list[torch.nn.Module], features: torch.Tensor, num_rounds: int) -> float:
    """Of one product; the least over rounds."""
    found = []
    for _ in range(num_rounds):
        began = process_time()
        for product in products:
            product(features)
        found.append((process_time() - began) / len(products))
    return 1e3 * min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    dtype, halves = resolve_format("auto", torch.device("cpu"))
    kind = product_kind(dtype, torch.device("cpu"), invariant=True, halves=halves) or PackedLinear
    own = "float16" if halves else str(dtype).removeprefix("torch.")
    print("| product | " + " | ".join(f"{rows} rows: {own}, 8 bits" for rows in ROWS) + " |")
    print("|" + "---|" * (len(ROWS) + 1))
    for name, (num_outputs, num_inputs) in SHAPES.items():
        weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
        copies = -(-CACHE_BYTES // weight.numel())
        packed: list[torch.nn.Module] = [kind(weight, None) for _ in range(copies)]
        narrow: list[torch.nn.Module] = [EightBitLinear(weight, None) for _ in range(copies)]
        cells = []
        for rows in ROWS:
            features = torch.randn(rows, num_inputs, generator=generator)
            pair = least_ms(packed, features.to(dtype), rounds), least_ms(narrow, features, rounds)
            cells.append("{:.3f}, {:.3f}".format(*pair))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
