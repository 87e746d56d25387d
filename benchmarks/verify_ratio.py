"""`rejection`, `block` and `target_probs` on a GPU against the time of one read of the logits.

Run: PYTHONPATH=src python -m benchmarks.verify_ratio [--out FILE.json] [--shapes 64x15x151936] [--filters none top-p]
[--temperature 0.3] [--triton]

Work: from bf16 logits [B (γ + 1), V], T = 0.8 (or `--temperature`) and the named filters, and a dense draft law (bf16
logits [B γ, V]: the target's plus normal noise of standard deviation 0.5, tokens drawn from them) or point masses, to
emitted tokens. Logits and times as in `benchmarks.verify`. Floor: both laws' logits read once, at this run's copy
bandwidth.
--triton times Triton's launches where CUDA C++ would take their place (kernels/cuda).
Refuses to run while the kernels accept or emit anything else than the reference of this file does, in float64.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import draftproof
from benchmarks.verify import FILTERS, copy_bandwidth, graph_us, logits_of
from draftproof.core import Purpose
from draftproof.kernels import (
    DraftLaws,
    RatioKernel,
    Requests,
    Rows,
    TargetProbsKernel,
    reference,
)
from draftproof.kernels.ratio import reference as ratio_reference
from draftproof.params import SamplingParams

SHAPES = ["64x15x151936", "32x7x151936", "8x7x151936", "1x15x151936"]
NAMES = ["none", "top-p", "top-k, top-p"]


def main() -> int:
    """Prints a table, writes JSON. Exit code 1 if the kernels are wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="requests x draft length x vocabulary")
    parser.add_argument("--filters", nargs="+", default=NAMES, choices=list(FILTERS))
    parser.add_argument("--temperature", type=float, default=0.8, help="of targets and drafts, above 0")
    parser.add_argument("--triton", action="store_true", help="no launches in CUDA C++")
    parser.add_argument("--out", type=Path, default=Path("out/verify_ratio.json"))
    options = parser.parse_args()
    if not 0 < options.temperature < float("inf"):
        parser.error(f"--temperature: got {options.temperature}, allowed is any above 0")
    if not torch.cuda.is_available():
        print("benchmarks.verify_ratio needs a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    bandwidth = copy_bandwidth(flush)
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "draftproof": draftproof.__version__,
        "copy_bytes_per_second": bandwidth,
        "temperature": options.temperature,
        "triton_alone": options.triton,
        "rows": [],
    }
    print(f"{found['device']}, copy {bandwidth / 1e12:.2f} TB/s")
    print(f"{'B':>3} {'γ':>3} {'filters':<14} {'what':<18} {'µs':>8} {'floor':>7} {'ratio':>6} {'accepted':>8}")
    for shape in options.shapes:
        num_requests, length, vocab_size = map(int, shape.split("x"))
        logits, draft_logits, token_ids = drafted(num_requests, length, vocab_size, options.temperature)
        rows = Rows.of_drafts([100] * num_requests, token_ids.tolist(), device="cuda")
        dense = DraftLaws.dense(draft_logits, torch.full((num_requests,), options.temperature, device="cuda"))
        read_us = logits.numel() * 2 / bandwidth * 1e6
        both_us = read_us + draft_logits.numel() * 2 / bandwidth * 1e6
        for name in options.filters:
            params = replace(FILTERS[name], temperature=0 if name == "greedy" else options.temperature)
            requests = Requests.of([params] * num_requests, range(num_requests), device="cuda")
            for what, law, floor_us in (("dense", dense, both_us), ("point", DraftLaws.point_masses(), read_us)):
                for operation in ("rejection", "block"):
                    block = operation == "block"
                    kernel = RatioKernel(logits, law, rows, vocab_size, block=block)
                    if options.triton:
                        kernel._counted = None
                    wrong = num_wrong(kernel, logits, law, rows, requests, vocab_size, block)
                    if wrong:
                        print(f"{shape} {name} {what} {operation}: {wrong} requests are wrong: not timed")
                        return 1
                    us = graph_us(partial(kernel, logits, law, rows, requests), flush)
                    accepted = kernel(logits, law, rows, requests).num_accepted.float().mean().item()
                    report(found, shape, name, f"{operation} {what}", us, floor_us, accepted)
            if num_requests <= 32:
                out = torch.empty(logits.shape, dtype=torch.float32, device="cuda")
                writer = TargetProbsKernel(logits, rows, vocab_size)
                if options.triton:
                    writer._counted = None
                writer(logits, rows, requests, out)
                without = replace(params, top_p=1.0)
                wider = Requests.of([without] * num_requests, range(num_requests), device="cuda")
                laws = [reference.probs(logits, rows, each, vocab_size) for each in (requests, wider)]
                if not is_law(out, *laws, params.top_p or 1.0):
                    print(f"{shape} {name} target_probs: more than 1e-6 off: not timed")
                    return 1
                us = graph_us(partial(writer, logits, rows, requests, out), flush)
                report(found, shape, name, "target_probs", us, 3 * read_us, 0.0)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"out": str(options.out), "num_rows": len(found["rows"])}))
    return 0


def is_law(out: torch.Tensor, law: torch.Tensor, before_top_p: torch.Tensor, top_p: float) -> bool:
    """Whether probabilities [rows, V] are within 1e-6 of the float64 law, where top-p's last tokens may be near ties.

    before_top_p: the law without top-p, in float64. A row may keep other tokens than the law only if the masses at
    which the two stop both lie within 1e-6 of top_p, which float32 sums can't tell apart; and then it has to be the law
    over what it keeps.
    """
    kept, wanted = out > 0, law > 0
    mass = torch.where(kept, before_top_p, 0.0)
    over_kept = mass / mass.sum(dim=1, keepdim=True)
    if not bool(((out - over_kept).abs() <= 1e-6).all()):
        return False
    rows = (kept != wanted).any(dim=1)
    both, either = (kept & wanted)[rows], (kept | wanted)[rows]
    smaller = torch.where(both, before_top_p[rows], 0.0).sum(dim=1)
    least = torch.where(either, before_top_p[rows], 2.0).amin(dim=1)
    larger = torch.where(either, before_top_p[rows], 0.0).sum(dim=1) - least
    return bool((smaller >= top_p - 1e-6).all()) and bool((larger <= top_p + 1e-6).all())


def report(
    found: dict[str, object], shape: str, name: str, what: str, us: float, floor_us: float, accepted: float
) -> None:
    """Adds one row to the results and prints it."""
    num_requests, length, _ = map(int, shape.split("x"))
    row = {"shape": shape, "filters": name, "what": what, "us": us, "floor_us": floor_us, "accepted": accepted}
    rows = found["rows"]
    assert isinstance(rows, list)
    rows.append(row)
    print(
        f"{num_requests:>3} {length:>3} {name:<14} {what:<18} {us:>8.1f} {floor_us:>7.1f} {us / floor_us:>6.2f} "
        f"{accepted:>8.2f}"
    )


def drafted(
    num_requests: int, length: int, vocab_size: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(target logits, draft logits, [requests, length] tokens drawn from the draft's law at `temperature`)."""
    logits = logits_of(num_requests * (length + 1), vocab_size)
    generator = torch.Generator(device="cuda").manual_seed(1)
    held = logits.view(num_requests, length + 1, vocab_size)[:, :length].reshape(-1, vocab_size)
    noise = torch.randn(held.shape, device="cuda", generator=generator, dtype=torch.bfloat16)
    draft_logits = held + 0.5 * noise
    rows = Rows.of_drafts([100] * len(held), [[]] * len(held), device="cuda", purpose=Purpose.DRAFT)
    params = SamplingParams(temperature=temperature)
    requests = Requests.of([params] * len(held), range(10_000, 10_000 + len(held)), device="cuda")
    tokens = [
        ratio_reference.drawn(draft_logits[start : start + 64], start, rows, requests, vocab_size)
        for start in range(0, len(held), 64)
    ]
    return logits, draft_logits, torch.cat(tokens).view(num_requests, length)


def num_wrong(
    kernel: RatioKernel,
    logits: torch.Tensor,
    law: DraftLaws,
    rows: Rows,
    requests: Requests,
    vocab_size: int,
    block: bool,
) -> int:
    """How many of the first 8 requests emit other tokens than the float64 reference, or have a fault."""
    verdict = kernel(logits, law, rows, requests)
    expected = ratio_reference.verify(logits, law, rows, requests, vocab_size, block=block, limit=8)
    count = len(expected)
    emitted = [[token for token in row if token >= 0] for row in verdict.token_ids[:count].tolist()]
    return sum(a != b for a, b in zip(emitted, expected, strict=True)) + int((verdict.faults != 0).sum())


if __name__ == "__main__":
    sys.exit(main())
