"""The verification kernels against the time of one read of the logits, on this machine's GPU.

Run: PYTHONPATH=src python -m benchmarks.verify [--out FILE.json] [--shapes 64x15 8x7] [--filters none top-p]

Work: from bf16 logits [B (γ + 1), V], T = 0.8 and the named filters to emitted tokens, under `keyed`. Logits: normal,
standard deviation 2, and 50 random tokens a row raised by up to 10. Time: median over replays of a CUDA graph, the L2
cache overwritten before each. Floor: the logits read once, at this run's copy bandwidth (bytes read and written).
Refuses to run while the kernels draw other tokens than the float64 reference does, near ties excepted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import draftproof
from draftproof.kernels import KeyedKernel, Requests, Rows, draw, reference
from draftproof.params import SamplingParams

FILTERS = {
    "none": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k, top-p": SamplingParams(temperature=0.8, top_k=20, top_p=0.95),
    "min-p": SamplingParams(temperature=0.8, min_p=0.05),
    "greedy": SamplingParams(temperature=0),
}
SHAPES = ["1x7x151936", "1x15x151936", "8x7x151936", "32x7x151936", "64x3x151936", "64x15x151936", "8x7x32000"]


def main() -> int:
    """Prints a table, writes JSON. Exit code 1 if the kernels are wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="requests x draft length x vocabulary")
    parser.add_argument("--filters", nargs="+", default=list(FILTERS), choices=list(FILTERS))
    parser.add_argument("--out", type=Path, default=Path("out/verify.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.verify needs a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    wrong = num_wrong(151936)
    if wrong:
        print(f"{wrong} of {64 * len(FILTERS)} tokens differ from the reference's: nothing is timed", file=sys.stderr)
        return 1
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    bandwidth = copy_bandwidth(flush)
    results = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "draftproof": draftproof.__version__,
        "copy_bytes_per_second": bandwidth,
        "rows": [],
    }
    print(f"{results['device']}, copy {bandwidth / 1e12:.2f} TB/s")
    print(f"{'B':>3} {'γ':>3} {'V':>7} {'filters':<14} {'µs':>8} {'floor':>7} {'ratio':>6}")
    for shape in options.shapes:
        num_requests, length, vocab_size = map(int, shape.split("x"))
        logits = logits_of(num_requests * (length + 1), vocab_size)
        rows = Rows.of_drafts([100] * num_requests, [[0] * length] * num_requests, device="cuda")
        floor_us = logits.numel() * 2 / bandwidth * 1e6
        for name in options.filters:
            requests = Requests.of([FILTERS[name]] * num_requests, range(num_requests), device="cuda")
            kernel = KeyedKernel(logits, rows, vocab_size)
            us = graph_us(lambda k=kernel, z=logits, r=rows, q=requests: k(z, r, q), flush)
            results["rows"].append(
                {"B": num_requests, "gamma": length, "V": vocab_size, "filters": name, "us": us, "floor_us": floor_us}
            )
            ratio = us / floor_us
            print(f"{num_requests:>3} {length:>3} {vocab_size:>7} {name:<14} {us:>8.1f} {floor_us:>7.1f} {ratio:>6.2f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"out": str(options.out), "num_rows": len(results["rows"])}))
    return 0


def logits_of(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """[num_rows, vocab_size] bf16 logits on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, device="cuda", generator=generator) * 2
    raised = torch.randint(0, vocab_size, (num_rows, 50), device="cuda", generator=generator)
    logits.scatter_add_(1, raised, torch.rand(num_rows, 50, device="cuda", generator=generator) * 10)
    return logits.bfloat16()


def num_wrong(vocab_size: int) -> int:
    """How many of 64 rows' tokens under each filter are not the reference's, where its two best aren't within 1e-6."""
    logits, wrong = logits_of(64, vocab_size, seed=1), 0
    rows = Rows.of_drafts(list(range(64)), [[]] * 64, device="cuda")
    for params in FILTERS.values():
        requests = Requests.of([params] * 64, range(64), device="cuda")
        law = reference.probs(logits, rows, requests, vocab_size)
        ratios = reference.exponential(reference.field(rows, requests, vocab_size)) / law
        best = ratios.topk(2, dim=-1, largest=False)
        clear = best.values[:, 1] > best.values[:, 0] * (1 + 1e-6)
        wrong += int((clear & (draw(logits, rows, requests)[0] != best.indices[:, 0])).sum())
    return wrong


def copy_bandwidth(flush: torch.Tensor) -> float:
    """Bytes read and written per second by a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (graph_us(lambda: target.copy_(source), flush) * 1e-6)


def graph_us(call: Callable[[], object], flush: torch.Tensor, repeats: int = 50) -> float:
    """Median microseconds of one replay of `call` as a CUDA graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
